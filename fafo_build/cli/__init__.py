"""The build half's commands: parse, call, print."""
