"""Rewriting of MuJoCo XML: what only a camera sees becomes tiny, everything else stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

TETRAHEDRON = "0 0 0  0.01 0 0  0 0.01 0  0 0 0.01"
FILES = ("mesh", "hfield", "texture", "skin", "model", "flexcomp", "composite")  # elements that name a file


@dataclass
class Folder:
    """The XML files of one directory read together: they include one another and share names."""

    roots: dict[Path, Element]
    classes: dict[str, list[dict[str, str]]] = field(default_factory=dict)  # geom defaults, every definition
    mentioned: set[str] = field(default_factory=set)  # attribute values that may name a geom
    search: list[Path] = field(default_factory=list)  # where files named in the XML may lie


def slim_folder(source: Path, target: Path) -> None:
    """Write slim versions of all XML files of `source` to `target`."""
    folder = _read(source)
    visual = _visual_meshes(folder)
    target.mkdir(parents=True, exist_ok=True)
    for path, root in folder.roots.items():
        for element in root.iter():
            if element.tag == "texture":
                _shrink_texture(element)
            elif element.tag == "mesh" and _mesh_name(element) in visual:
                _shrink_mesh(element)
            elif element.tag in FILES:
                _point_at_stock(element, folder, target)
        ElementTree.ElementTree(root).write(target / path.name, encoding="unicode")


def _read(source: Path) -> Folder:
    folder = Folder({path: ElementTree.parse(path).getroot() for path in sorted(source.glob("*.xml"))})
    folder.search = [source]
    for root in folder.roots.values():
        for compiler in root.iter("compiler"):
            given = (compiler.get(key) for key in ("meshdir", "assetdir", "texturedir"))
            folder.search += [source / name for name in given if name]
        for top in root.findall("default"):
            _collect_classes(top, {}, folder.classes)
        for element in root.iter():
            folder.mentioned.update(value for key, value in element.items() if key != "name")
    return folder


def _collect_classes(
    default: Element, inherited: dict[str, str], into: dict[str, list[dict[str, str]]]
) -> None:
    own = default.find("geom")
    merged = {**inherited, **(own.attrib if own is not None else {})}
    into.setdefault(default.get("class", "main"), []).append(merged)
    for child in default.findall("default"):
        _collect_classes(child, merged, into)


def _visual_meshes(folder: Folder) -> set[str]:
    """Names of meshes that every geom using them uses only to be looked at."""
    used: dict[str, bool] = {}
    for root in folder.roots.values():
        weighs = any(c.get("inertiafromgeom") == "true" for c in root.iter("compiler"))
        if weighs or root.find(".//rangefinder") is not None:
            return set()  # here even a visual geom weighs, or can be touched by a ray
        for body, childclass, geom in _geoms(root, None, ""):
            mesh = geom.get("mesh")
            if mesh is not None:
                used[mesh] = used.get(mesh, True) and _is_visual(geom, body, childclass, folder)
        for default in root.iter("default"):
            for geom in default.findall("geom"):
                used.update({geom.get("mesh", ""): False})
    return {name for name, only_visual in used.items() if only_visual}


def _geoms(
    element: Element, body: Element | None, childclass: str
) -> Iterator[tuple[Element | None, str, Element]]:
    """Every geom of the world with the body it belongs to and the class it inherits."""
    for child in element:
        if child.tag == "geom":
            yield body, childclass, child
        elif child.tag in ("worldbody", "body", "frame", "replicate", "mujoco"):
            holder = child if child.tag == "body" else body
            yield from _geoms(child, holder, child.get("childclass", childclass))


def _is_visual(geom: Element, body: Element | None, childclass: str, folder: Folder) -> bool:
    name = geom.get("class") or childclass or "main"
    definitions = folder.classes.get(name, [] if name != "main" else [{}])
    for inherited in definitions:
        values = {**inherited, **geom.attrib}
        touches = values.get("contype", "1") != "0" or values.get("conaffinity", "1") != "0"
        weightless = values.get("mass") == "0" or values.get("density") == "0"
        if touches or not (weightless or body is None or body.find("inertial") is not None):
            return False
    # A named geom can still collide through an explicit <pair>.
    return bool(definitions) and geom.get("name", "") not in folder.mentioned - {""}


def _mesh_name(mesh: Element) -> str:
    return mesh.get("name") or Path(mesh.get("file", "")).stem


def _shrink_texture(texture: Element) -> None:
    kept = {key: value for key in ("name", "type", "class") if (value := texture.get(key))}
    kept.setdefault("name", Path(texture.get("file", "")).stem)
    if not kept["name"]:
        del kept["name"]
    texture.attrib.clear()
    texture.attrib.update(kept, builtin="flat", width="8", height="8")


def _shrink_mesh(mesh: Element) -> None:
    kept = {key: value for key in ("class",) if (value := mesh.get(key))}
    name = _mesh_name(mesh)
    mesh.attrib.clear()
    # The scale is our own: a default in millimetres would make the tetrahedron too small for MuJoCo.
    mesh.attrib.update(kept, name=name, vertex=TETRAHEDRON, scale="1 1 1")


def _point_at_stock(element: Element, folder: Folder, target: Path) -> None:
    """Files below the folder are linked to at the same place, files elsewhere are named in full."""
    name = element.get("file")
    found = [path for place in folder.search if name is not None and (path := place / name).is_file()]
    if not found:
        return
    stock = found[0].resolve()
    source = folder.search[0].resolve()
    if stock.is_relative_to(source):
        link = target / stock.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(stock)
        return
    if "name" not in element.attrib and element.tag in ("mesh", "hfield"):
        element.set("name", stock.stem)
    element.set("file", str(stock))
