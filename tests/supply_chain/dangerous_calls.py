"""Find calls that run code from a file or from a text: pickle in all its forms, `eval`, shells.

The finder reads source code. It sees the names that a module imports, also under other names, and how they are used.
"""

import ast
from collections.abc import Iterator

# Modules that read pickle, or run code of what they read.
PICKLING = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
RUNS_CODE = {"eval", "exec", "compile", "__import__"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"}
LOADERS = {
    "torch.load",
    "torch.jit.load",
    "torch.hub.load",
    "numpy.load",
    "yaml.load",
    "code.interact",
}
LOADERS |= {
    "yaml.unsafe_load",
    "yaml.full_load",
    "pandas.read_pickle",
    "torch.package.PackageImporter",
}
BY_NAME = {"importlib.import_module", "runpy.run_path", "runpy.run_module"}
# A keyword with this value makes a call dangerous, or harmless.
DANGEROUS_KEYWORDS = {"shell": True, "allow_pickle": True, "weights_only": False}
HARMLESS = {"torch.load": {"weights_only": True}}


def dangerous_calls(source: str) -> list[str]:
    """Return what is dangerous in a module, as `line: name`, in the order of the lines."""
    tree = ast.parse(source)
    names = dict(_imported_names(tree))
    found = set[tuple[int, str]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(node.lineno, name) for name in _modules(node) if _is_pickling(name)}
        elif isinstance(node, ast.Call):
            found |= {(node.lineno, fault) for fault in _faults(node, names)}
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            name = _full_name(node, names)  # also handed on without a call, as a function
            if name in LOADERS | SHELLS and name not in HARMLESS:
                found.add((node.lineno, name))
    return [f"{line}: {name}" for line, name in sorted(found)]


def _modules(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names]


def _is_pickling(module: str) -> bool:
    return module.partition(".")[0] in PICKLING


def _imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the names that imports bind, with the full names of what they mean."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    (alias.asname or alias.name.partition(".")[0]),
                    (alias.name if alias.asname else alias.name.partition(".")[0]),
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _full_name(node: ast.expr, names: dict[str, str]) -> str:
    """Return `os.system` for `os.system` and for what was imported from there; "" for anything else."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        owner = _full_name(node.value, names)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def _faults(call: ast.Call, names: dict[str, str]) -> Iterator[str]:
    name = _full_name(call.func, names)
    keywords = {
        word.arg: word.value.value for word in call.keywords if isinstance(word.value, ast.Constant)
    }
    harmless = HARMLESS.get(name, {})
    if name in RUNS_CODE or (name in HARMLESS and not harmless.items() <= keywords.items()):
        yield name
    if name in BY_NAME and not (call.args and isinstance(call.args[0], ast.Constant)):
        yield name
    for word, value in DANGEROUS_KEYWORDS.items():
        # A value that is decided elsewhere may be the dangerous one.
        is_open = any(given.arg == word and word not in keywords for given in call.keywords)
        if is_open or (word in keywords and keywords[word] == value):
            yield f"{word}={value}"
