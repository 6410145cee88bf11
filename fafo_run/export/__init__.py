"""Results, where users want them: JSON lines or Parquet, one row per item of the view, in the view's
order.
"""
