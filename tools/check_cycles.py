"""No import cycle between files: Rust modules, Java classes and Python modules of this repository.

Rust: `use` trees and paths that begin with `crate`, `super` or `self` are followed through
re-exports to the file that defines the item. Neither a `mod` line nor a `pub use` that only passes
on is an import. Tests may import what they test. Java: names of classes of the same repository.
Python: `import` and `from` of modules of the same repository.

Fails for any cycle, and prints what ties it.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

USE = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", re.M)
INLINE = re.compile(r"(?<![\w:$])((?:crate|super|self)(?:::\w+)+)")
# A visibility names a place and takes nothing from it.
RESTRICTED = re.compile(r"\bpub\(in [^)]*\)")
ITEM = re.compile(
    r"^(?:pub(?:\([^)]*\))?\s+)?(?:default\s+|unsafe\s+|async\s+|const\s+|extern\s+\"[^\"]*\"\s+)*"
    r"(?:struct|enum|union|fn|trait|const|static(?:\s+mut)?|type|macro_rules!)\s+(\w+)",
    re.M,
)
# Comments, strings and characters: a quote in one of them opens no other.
COMMENT = re.compile(
    r"//[^\n]*|/\*.*?\*/|\bb?r(#*)\".*?\"\1|\"(?:\\.|[^\"\\])*\"|'(?:\\.[^'\n]*|[^'\\\n])'", re.S
)


def split_top(text):
    """The parts of a `use` tree between its outermost commas."""
    parts, depth, part = [], 0, ""
    for char in text:
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += char
    return [part.strip() for part in [*parts, part] if part.strip()]


def expand(tree):
    """`a::{b, c::d as e}` as `[(["a", "b"], "b"), (["a", "c", "d"], "e")]`."""
    tree = tree.strip()
    brace = tree.find("{")
    if brace >= 0:
        head, inner = tree[:brace], tree[brace + 1 : tree.rindex("}")]
        return [path for part in split_top(inner) for path in expand(head + part)]
    path, _, name = tree.partition(" as ")
    segments = [segment.strip() for segment in path.split("::")]
    if segments[-1] == "self":
        segments.pop()
    return [(segments, name.strip() or segments[-1])]


def without_tests(text):
    """Cuts items that are marked `#[cfg(test)]` or for loom's tests."""
    out, at = [], 0
    for mark in re.finditer(r"#\[cfg\((?:test|all\(test[^\]]*|any\(test[^\]]*)\)\]\s*", text):
        if mark.start() < at:
            continue
        out.append(text[at : mark.start()])
        end, depth = mark.end(), 0
        while end < len(text):
            char = text[end]
            depth += (char == "{") - (char == "}")
            end += 1
            if (char == ";" and depth == 0) or (char == "}" and depth == 0):
                break
        at = end
    return "".join([*out, text[at:]])


class Crate:
    """One crate's modules, by their paths: the file, the names that it defines and those that it
    imports.
    """

    def __init__(self, root):
        self.modules = {}
        for file in sorted(root.rglob("*.rs")):
            parts = list(file.relative_to(root).with_suffix("").parts)
            if parts[-1] in ("mod", "lib", "main") and not (parts[-1] == "mod" and len(parts) == 1):
                parts = parts[:-1] if parts[-1] == "mod" or len(parts) == 1 else parts
            if any(re.fullmatch(r"tests?|\w+_tests?|testing", part) for part in parts):
                continue
            text = without_tests(
                COMMENT.sub(lambda m: '""' if m[0][0] == '"' else "", file.read_text())
            )
            # main.rs beside lib.rs imports the library by its name
            if tuple(parts) in self.modules:
                continue
            self.modules[tuple(parts)] = (file, text, set(ITEM.findall(text)), {}, [])
        for path, (_, text, _, names, globs) in self.modules.items():
            for use in USE.finditer(text):
                for segments, name in expand(use[1]):
                    target = self.absolute(path, segments)
                    if target is None:
                        continue
                    if name == "*":
                        globs.append(target[:-1])
                    else:
                        names[name] = target

    def absolute(self, module, segments):
        """The path from the crate's root; None for what is not of this crate."""
        at = list(module)
        first, rest = segments[0], list(segments[1:])
        if first == "crate":
            return tuple(rest)
        if first in ("super", "self"):
            if first == "super":
                at = at[:-1]
            while rest and rest[0] == "super":
                at, rest = at[:-1], rest[1:]
            return tuple(at + rest)
        if (*module, first) in self.modules:
            return (*module, *segments)
        return None

    def resolve(self, path, depth=0):
        """The module that defines what `path` names, through re-exports."""
        module, rest = (), list(path)
        while rest and (*module, rest[0]) in self.modules:
            module, rest = (*module, rest[0]), rest[1:]
        if not rest or depth > 20 or module not in self.modules:
            return module
        _, _, items, names, globs = self.modules[module]
        if rest[0] in items:
            return module
        if rest[0] in names:
            return self.resolve((*names[rest[0]], *rest[1:]), depth + 1)
        for target in globs:
            found = self.resolve((*target, *rest), depth + 1)
            if found in self.modules and (rest[0] in self.modules[found][2] or found != target):
                return found
        return module

    def edges(self):
        """(file, file, name) for all that a file takes from another."""
        for module, (file, text, _, _, _) in self.modules.items():
            wanted = []
            body = USE.sub("", text)
            for use in USE.finditer(text):
                passed_on = use[0].lstrip().startswith("pub")
                for segments, name in expand(use[1]):
                    # What a file only passes on, it does not use itself.
                    if not passed_on or re.search(rf"\b{re.escape(name)}\b", body):
                        wanted.append((segments, name))
            wanted += [
                (path[1].split("::"), path[1].split("::")[-1])
                for path in INLINE.finditer(RESTRICTED.sub("", body))
            ]
            own = re.compile(r"(?<![\w:])([a-z_]\w*)::(\w+)")
            for path in own.finditer(body):
                if (*module, path[1]) in self.modules:
                    wanted.append(([path[1], path[2]], path[2]))
            for segments, name in wanted:
                target = self.absolute(module, segments)
                if target is None:
                    continue
                found = self.resolve(target[:-1] if name == "*" else target)
                if found != module and found in self.modules:
                    yield str(file), str(self.modules[found][0]), name


def java(files):
    classes = {file.stem: file for file in files}
    for file in files:
        text = COMMENT.sub("", file.read_text())
        for name in set(re.findall(r"\b[A-Z]\w*\b", text)) & set(classes) - {file.stem}:
            yield str(file), str(classes[name]), name


def python(files, roots):
    modules = {}
    for file in files:
        for root in roots:
            if root in file.parents:
                parts = file.relative_to(root).with_suffix("").parts
                modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    names = {file: name for name, file in modules.items()}
    for file in names:
        for node in ast.walk(ast.parse(file.read_text())):
            wanted = []
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    package = names[file].split(".")
                    package = package[: len(package) - node.level + (file.name == "__init__.py")]
                    base = ".".join([*package, *([base] if base else [])])
                wanted = [f"{base}.{alias.name}" for alias in node.names] + [base]
            for name in wanted:
                if name in modules and modules[name] != file:
                    yield str(file), str(modules[name]), name


def components(graph):
    """Strongly connected components of more than one file (Tarjan, without recursion)."""
    index, low, on, stack, found = {}, {}, set(), [], []
    for start in graph:
        if start in index:
            continue
        work = [(start, iter(sorted(graph[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on.add(start)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on.add(target)
                    work.append((target, iter(sorted(graph.get(target, ())))))
                    break
                if target in on:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    part = []
                    while True:
                        last = stack.pop()
                        on.discard(last)
                        part.append(last)
                        if last == node:
                            break
                    if len(part) > 1:
                        found.append(sorted(part))
    return found


def main():
    listed = subprocess.run(
        ["git", "ls-files"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.split()
    files = [Path(name) for name in listed if Path(name).is_file()]
    edges = []
    roots = sorted(
        {
            Path(*file.parts[:3])
            for file in files
            if file.suffix == ".rs" and "src" in file.parts[2:3]
        }
    )
    for root in roots:
        edges += Crate(root).edges()
    main_java = [file for file in files if file.suffix == ".java" and "main" in file.parts]
    edges += java(main_java)
    edges += python([file for file in files if file.suffix == ".py"], [Path("e2e"), Path("tools")])
    graph, ties = {}, {}
    for source, target, name in edges:
        graph.setdefault(source, set()).add(target)
        graph.setdefault(target, set())
        ties.setdefault((source, target), set()).add(name)
    cycles = components(graph)
    for cycle in cycles:
        print(
            f"error: {len(cycle)} files import each other: move what they share below them",
            file=sys.stderr,
        )
        for (source, target), names in sorted(ties.items()):
            if source in cycle and target in cycle:
                print(f"  {source} takes {', '.join(sorted(names))} from {target}", file=sys.stderr)
    print(f"imports: {len(graph)} files, {len(cycles)} cycles")
    return 1 if cycles else 0


if __name__ == "__main__":
    sys.exit(main())
