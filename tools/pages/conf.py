# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Sphinx reads this; tools/pages/build.py copies it beside the pages and sets the version."""

import os

project = "gpushare.kubernetes"
author = "gpushare.kubernetes contributors"
project_copyright = author
release = os.environ.get("GPUSHARE_VERSION", "unknown")
version = release
extensions = ["myst_parser", "sphinx_antsibull_ext"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
root_doc = "index"
language = "en"
nitpicky = True
# The slugs of GitHub, so that one link works there and here.
myst_heading_anchors = 4
myst_enable_extensions: list[str] = []
html_theme = "furo"
html_title = f"gpushare.kubernetes {release}"
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
pygments_style = "default"
highlight_language = "none"
templates_path: list[str] = []
exclude_patterns: list[str] = []
# Queries with the names of recording rules, which the lexer does not take.
suppress_warnings = ["misc.highlighting_failure"]
