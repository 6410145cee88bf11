"""The templates of a class: its messages and all that these include, read, parsed and placed in their
files.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from attrs import field, frozen
from jinja2 import Environment, TemplateSyntaxError, meta, nodes

from fafo_build.errors import Problem, TemplateError
from fafo_build.project.declaration import Project, PromptClass
from fafo_build.project.values import nearest
from fafo_build.render.environment import PromptEnvironment
from fafo_build.render.syntax import explain

_REFERENCES = (nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport)


@frozen
class Template:
    """The source of one template, and where a person finds it."""

    name: str
    """A prompt's path in the prompts folder, or `#message[N]` for the `content` of message N."""
    source: str
    """As Jinja reads it: newlines are `\\n`, no byte order mark, without the one newline that ends a file."""
    file: str
    """Relative to the project."""
    first_line: int = 1
    """The 1-based line of `file` on which `source` begins."""
    shown: tuple[str, ...] = field(default=(), repr=False)
    """The lines of `file`."""

    def problem(
        self,
        message: str,
        line: int,
        word: str | None = None,
        cure: str | None = None,
        column: int | None = None,
    ) -> Problem:
        """Return a problem on a 1-based line of the template, at a 1-based column of it, or at that of `word`
        if it stands there once.
        """
        inside = self.source.split("\n")
        text = inside[line - 1] if 0 < line <= len(inside) else ""
        at = line + self.first_line - 1
        shown = self.shown[at - 1] if 0 < at <= len(self.shown) else text
        if text.strip() not in shown:
            # The class file spells its text otherwise, with escapes: the template's own line is clearer.
            shown = text
        if column is not None:
            # The class file's line may have more before the template's.
            column = column + shown.find(text) if text in shown else None
        elif word:
            column = _column(shown, word)
        return Problem(message, file=self.file, line=at, column=column, source_line=shown or None, cure=cure)


@frozen
class Parsed:
    """A template, its syntax tree, and what it pulls in."""

    template: Template
    tree: nodes.Template
    references: tuple[tuple[str, nodes.Node], ...]
    """Names of other templates, with the nodes that name them."""


@frozen
class Prompts:
    """All templates that a class can reach."""

    messages: tuple[str, ...]
    """Per message of the class, the name of its template."""
    templates: Mapping[str, Parsed]
    """By name, sorted."""
    files: Mapping[str, str]
    """The prompt files among them: path relative to the project, sha256 of the bytes as they stand."""

    def reach(self, name: str) -> tuple[str, ...]:
        """Return the names of a template and all that it pulls in, sorted."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            here = waiting.pop()
            if here not in found:
                found.add(here)
                waiting += (other for other, _ in self.templates[here].references)
        return tuple(sorted(found))


def _column(line: str, word: str) -> int | None:
    """Return the 1-based column of a word: in code if it stands there; None when that leaves a choice."""
    places = [found.start() for found in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", line)]
    code = [
        span for tag in (r"\{\{.*?\}\}", r"\{%.*?%\}") for span in (m.span() for m in re.finditer(tag, line))
    ]
    in_code = [at for at in places if any(begin < at < end for begin, end in code)]
    if in_code:
        return in_code[0] + 1
    return places[0] + 1 if len(places) == 1 else None


def normalised(text: str, *, whole: bool = False) -> str:
    """Return text as Jinja reads it: `\\n` newlines, no byte order mark, and unless it is to stay `whole`
    without the one newline at its end.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return text if whole else text.removesuffix("\n")


def shown_path(project: Project, path: Path) -> str:
    """Return a path as messages and the lock show it: relative to the project, with `/`."""
    if path.is_relative_to(project.root):
        return path.relative_to(project.root).as_posix()
    # A folder outside the project: its own name stands for it, so that no machine's path is in the lock.
    for folder in (project.prompts_dir, project.classes_dir):
        if path.is_relative_to(folder):
            return f"{folder.name}/{path.relative_to(folder).as_posix()}"
    return path.name


def gather(project: Project, declared: PromptClass) -> Prompts:
    """Read and parse everything that the messages of a class can reach.

    Raises `TemplateError` with all problems at once: an absent or unreadable prompt, a syntax error, a
    computed name in an include.
    """
    return _Gathering(project, declared).prompts()


class _Gathering:
    def __init__(self, project: Project, declared: PromptClass) -> None:
        self._project = project
        self._class = declared
        self._class_lines = _lines(project.root / declared.file)
        self._parser = _parser()
        self._problems: list[Problem] = []
        self._parsed: dict[str, Parsed] = {}
        self._files: dict[str, str] = {}

    def prompts(self) -> Prompts:
        names: list[str] = []
        for number, message in enumerate(self._class.messages):
            if message.prompt is not None:
                name = message.prompt
                place = f"class.{self._class.name}.message[{number + 1}].prompt"
                self._prompt(name, Problem("", self._class.file, field=place))
            else:
                name = f"#message[{number}]"
                # Where the text goes on in the next message or in the answer, its end is meant.
                goes_on = self._class.format != "chat" or message.prefill
                self._parse(
                    Template(
                        name,
                        normalised(message.content or "", whole=goes_on),
                        self._class.file,
                        message.line,
                        self._class_lines,
                    )
                )
            names.append(name)
        if self._problems:
            raise TemplateError(self._problems)
        return Prompts(tuple(names), dict(sorted(self._parsed.items())), dict(sorted(self._files.items())))

    def _prompt(self, name: str, named_at: Problem) -> None:
        """Read one prompt file and what it pulls in; `named_at` is where it is named."""
        if name in self._parsed:
            return
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or "\\" in name or pure.as_posix() != name:
            self._complain(
                named_at,
                f'"{name}" isn\'t a path inside the prompts folder',
                'write it from the prompts folder on, with "/": "folder/name.md"',
            )
            return
        path = self._project.prompts_dir / name
        file = shown_path(self._project, path)
        try:
            raw = path.read_bytes()
            source = normalised(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            line = raw[: error.start].count(b"\n") + 1
            self._problems.append(Problem("not UTF-8", file=file, line=line, cure='save it as "UTF-8"'))
            return
        except OSError as error:
            self._absent(named_at, name, file, error)
            return
        self._files[file] = hashlib.sha256(raw).hexdigest()
        self._parse(Template(name, source, file, 1, tuple(source.split("\n"))))

    def _absent(self, named_at: Problem, name: str, file: str, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            self._complain(named_at, f'the prompt "{file}" can\'t be read: {error.strerror}', None)
            return
        folder = self._project.prompts_dir
        known = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        near = nearest(name, known)
        cure = f'did you mean "{near}"?' if near else f"write {file}, or name a file that is there"
        self._complain(named_at, f'there is no prompt "{file}"', cure)

    def _complain(self, at: Problem, message: str, cure: str | None) -> None:
        self._problems.append(Problem(message, at.file, at.line, at.column, at.field, at.source_line, cure))

    def _parse(self, template: Template) -> None:
        try:
            tree = self._parser.parse(template.source, template.name)
            # Some mistakes (a block that is defined twice) show only when code is made of the tree.
            meta.find_undeclared_variables(tree)
        except TemplateSyntaxError as error:
            found = explain(template.source, error, self._parser)
            self._problems.append(
                template.problem(found.message, found.line, cure=found.cure, column=found.column)
            )
            return
        references = tuple(self._references(template, tree))
        # Entered before the references are read, so that a circle of includes ends.
        self._parsed[template.name] = Parsed(template, tree, references)
        for name, node in references:
            self._prompt(name, template.problem("", node.lineno, name))
        present = tuple(pair for pair in references if pair[0] in self._parsed)
        self._parsed[template.name] = Parsed(template, tree, present)

    def _references(self, template: Template, tree: nodes.Template) -> Iterator[tuple[str, nodes.Node]]:
        for node in tree.find_all(_REFERENCES):
            names = _constant_names(node.template)  # type: ignore[attr-defined]
            if names is None:
                self._problems.append(
                    template.problem(
                        "the name of an included prompt is computed",
                        node.lineno,
                        cure="write the name itself, between quotes: the build must know every prompt",
                    )
                )
            for name in names or ():
                yield name, node


class _Tolerant(dict[str, Any]):
    """Filters or tests; a name that nobody knows is no error yet: `checks` reports it with its place."""

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, str)


def _parser() -> Environment:
    environment = PromptEnvironment({})
    environment.filters = _Tolerant(environment.filters)
    environment.tests = _Tolerant(environment.tests)
    return environment


def _constant_names(node: Any) -> tuple[str, ...] | None:
    if isinstance(node, nodes.Const) and isinstance(node.value, str):
        return (node.value,)
    if isinstance(node, nodes.List | nodes.Tuple):
        inner = [_constant_names(item) for item in node.items]
        if all(names is not None for names in inner):
            return tuple(name for names in inner if names for name in names)
    return None


def _lines(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text("utf-8").split("\n"))
    except (OSError, UnicodeDecodeError):
        # Only for showing a line in a message; whoever reads the class file has said what is wrong with it.
        return ()
