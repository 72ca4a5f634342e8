"""How Sphinx builds the documentation site: `make docs-site`."""

import inspect
import os
import re
from pathlib import Path
from types import FunctionType
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import zloss

DOCS = Path(__file__).parent
ROOT = DOCS.parent

# Documents of other folders that the site shows, by the name of their page.
FROM_ELSEWHERE = {
    "changelog": ROOT / "CHANGELOG.md",
    "contributing": ROOT / "CONTRIBUTING.md",
    "factored-layer": ROOT / "src/zloss/layers/README.md",
    "security": ROOT / "SECURITY.md",
}

project = "zloss"
author = "The zloss developers"
copyright = author
version = release = zloss.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
nitpicky = True
default_role = "code"  # a single backtick means code in our docstrings, as in Markdown

# Other libraries have no page here, and a build without network cannot ask for theirs. Nor have our own inner modules.
nitpick_ignore_regex = [
    ("py:.*", r"(torch|collections|typing|pathlib)\..*"),
    ("py:class", r"zloss\.\w+\..+"),
]

myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"  # tutorials run at every build, so that they cannot go stale
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

autodoc_default_options = {
    "members": True,
    "inherited-members": "Module,Optimizer,tuple",
    "member-order": "bysource",
}
autodoc_inherit_docstrings = False  # those of torch.nn.Module say nothing about a layer
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
python_maximum_signature_line_length = (
    120  # counted with the full names of types, which the page shortens
)

copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

html_title = "zloss"
html_theme = "pydata_sphinx_theme"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
# Pages without pages below them need no navigation beside them.
html_sidebars: dict[str, list[str]] = {path.stem: [] for path in DOCS.glob("*.md")}
toc_object_entries_show_parents = "hide"
html_theme_options = {
    "show_nav_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}

_LINK = re.compile(r"(?<=\]\()(?P<target>[^)\s#]+)(?=[)#])")

_FORWARD = (
    "Run the module, as a call of it does. The description of the class explains the arguments."
)

logger = logging.getLogger(__name__)


def read_source(app: Sphinx, page: str, source: list[str]) -> None:
    """Show documents of other folders, and lead every link between documents to its page."""
    origin = FROM_ELSEWHERE.get(page, DOCS / f"{page}.md")
    text = origin.read_text(encoding="utf-8") if page in FROM_ELSEWHERE else source[0]
    source[0] = _LINK.sub(lambda link: _link_of_site(link["target"], origin, page), text)


def _link_of_site(target: str, origin: Path, page: str) -> str:
    path = Path(os.path.normpath(origin.parent / target))
    if ":" in target or not path.is_file():
        return target  # of the web, or broken, which Sphinx notices
    pages = {document: name for name, document in FROM_ELSEWHERE.items()}
    if path in pages:
        path = DOCS / f"{pages[path]}.md"
    return os.path.relpath(path, (DOCS / page).parent)


def check_reference(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of every public name of `zloss` that the API reference lacks, or that has no docstring."""
    documented = {name for name, *_ in env.get_domain("py").get_objects()}
    for name, value in vars(zloss).items():
        if name.startswith("_") or inspect.ismodule(value):
            continue
        if f"zloss.{name}" not in documented:
            logger.warning("zloss.%s is on no page of docs/api", name)
        if not inspect.getdoc(value):
            logger.warning("zloss.%s has no docstring", name)


def inherit_docstrings(app: Sphinx) -> None:
    """Give methods without a docstring the docstring of the method that they override, if that is ours."""
    public = (cls for cls in vars(zloss).values() if inspect.isclass(cls))
    for owner in {base for cls in public for base in cls.__mro__ if _is_ours(base)}:
        for name, member in vars(owner).items():
            if name.startswith("_") or not isinstance(member, FunctionType | property):
                continue
            overridden = (vars(base).get(name) for base in owner.__mro__[1:] if _is_ours(base))
            docstrings = (method.__doc__ for method in overridden if method is not None)
            default = _FORWARD if name == "forward" else None
            member.__doc__ = member.__doc__ or next(filter(None, docstrings), default)


def _is_ours(owner: type) -> bool:
    return owner.__module__.startswith("zloss.")


def keep_signs(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Keep a colon in a property from ending a type, and a description like "C." from being item C of a list."""
    lines[:] = [re.sub(r"(: [A-Z])\.$", r"\1\\.", line) for line in lines]
    if what in ("attribute", "property"):
        lines.insert(0, "\\ ")  # an empty first line without a colon


def mathml(formula: str, *, as_block: bool = False) -> str:
    """Return a formula as MathML, with bars where every font shows them: as accents, some lie on the letter."""
    text = tex2mathml(formula, as_block=as_block)
    return text.replace('<mover accent="true">', "<mover>").replace("\u02c9", "\u00af")


def visit_math(translator: Any, node: nodes.math) -> None:
    """Write a formula of a sentence as MathML, which browsers draw without a script."""
    translator.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def visit_math_block(translator: Any, node: nodes.math_block) -> None:
    """Write a displayed formula as MathML, in a box that scrolls where the screen is narrow."""
    formula = mathml(node.astext(), as_block=True)
    translator.body.append(f'<div class="formula">{formula}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Connect the functions of this file with Sphinx."""
    app.connect("builder-inited", inherit_docstrings)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    app.connect("source-read", read_source)
    app.connect("env-check-consistency", check_reference)
    app.connect("autodoc-process-docstring", keep_signs, priority=400)  # Napoleon's is 500
