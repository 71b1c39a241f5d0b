"""Rewriting of MuJoCo XML (MJCF): shrinks textures and visual meshes, leaves everything else unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

TETRAHEDRON = "0 0 0  0.01 0 0  0 0.01 0  0 0 0.01"
# Elements that may refer to a file.
FILE_ELEMENTS = ("mesh", "hfield", "texture", "skin", "model", "flexcomp", "composite")


@dataclass
class ModelDirectory:
    """The XML files of one directory, which include one another and share names."""

    roots: dict[Path, Element]
    geom_defaults: dict[str, list[dict[str, str]]] = field(default_factory=dict)  # by class, all definitions
    references: set[str] = field(default_factory=set)  # attribute values that may be the name of a geom
    search_paths: list[Path] = field(default_factory=list)  # directories of files that the XML refers to


def write_slim_models(source: Path, target: Path) -> None:
    """Write slim versions of all XML files of directory `source` to `target`.

    Raises OSError, or ElementTree.ParseError for malformed XML.
    """
    models = _read(source)
    visual = _visual_meshes(models)
    target.mkdir(parents=True, exist_ok=True)
    for path, root in models.roots.items():
        for element in root.iter():
            if element.tag == "texture":
                _shrink_texture(element)
            elif element.tag == "mesh" and _mesh_name(element) in visual:
                _shrink_mesh(element)
            elif element.tag in FILE_ELEMENTS:
                _refer_to_stock_file(element, models, target)
        ElementTree.ElementTree(root).write(target / path.name, encoding="unicode")


def _read(source: Path) -> ModelDirectory:
    models = ModelDirectory(
        {path: ElementTree.parse(path).getroot() for path in sorted(source.glob("*.xml"))}
    )
    models.search_paths = [source]
    for root in models.roots.values():
        for compiler in root.iter("compiler"):
            names = (compiler.get(key) for key in ("meshdir", "assetdir", "texturedir"))
            models.search_paths += [source / name for name in names if name]
        for top in root.findall("default"):
            _collect_geom_defaults(top, {}, models.geom_defaults)
        for element in root.iter():
            models.references.update(value for key, value in element.items() if key != "name")
    return models


def _collect_geom_defaults(
    default: Element, inherited: dict[str, str], into: dict[str, list[dict[str, str]]]
) -> None:
    geom = default.find("geom")
    merged = {**inherited, **(geom.attrib if geom is not None else {})}
    into.setdefault(default.get("class", "main"), []).append(merged)
    for child in default.findall("default"):
        _collect_geom_defaults(child, merged, into)


def _visual_meshes(models: ModelDirectory) -> set[str]:
    """Return the names of meshes that only visual geoms use."""
    only_visual: dict[str, bool] = {}
    for root in models.roots.values():
        has_mass = any(c.get("inertiafromgeom") == "true" for c in root.iter("compiler"))
        if has_mass or root.find(".//rangefinder") is not None:
            return set()  # visual geoms have mass here, or a rangefinder can hit them
        for body, childclass, geom in _geoms(root, None, ""):
            mesh = geom.get("mesh")
            if mesh is not None:
                only_visual[mesh] = only_visual.get(mesh, True) and _is_visual(geom, body, childclass, models)
        for default in root.iter("default"):
            for geom in default.findall("geom"):
                only_visual.update({geom.get("mesh", ""): False})
    return {name for name, is_visual in only_visual.items() if is_visual}


def _geoms(
    element: Element, body: Element | None, childclass: str
) -> Iterator[tuple[Element | None, str, Element]]:
    """Yield (body, inherited default class, geom) for every geom; body is None for the world body."""
    for child in element:
        if child.tag == "geom":
            yield body, childclass, child
        elif child.tag in ("worldbody", "body", "frame", "replicate", "mujoco"):
            parent = child if child.tag == "body" else body
            yield from _geoms(child, parent, child.get("childclass", childclass))


def _is_visual(geom: Element, body: Element | None, childclass: str, models: ModelDirectory) -> bool:
    """Whether a geom neither collides nor contributes mass, under every definition of its default class."""
    name = geom.get("class") or childclass or "main"
    definitions = models.geom_defaults.get(name, [] if name != "main" else [{}])
    for inherited in definitions:
        values = {**inherited, **geom.attrib}
        collides = values.get("contype", "1") != "0" or values.get("conaffinity", "1") != "0"
        weightless = values.get("mass") == "0" or values.get("density") == "0"
        if collides or not (weightless or body is None or body.find("inertial") is not None):
            return False
    # A geom that is referred to by name can still collide through an explicit <pair>.
    return bool(definitions) and geom.get("name", "") not in models.references - {""}


def _mesh_name(mesh: Element) -> str:
    return mesh.get("name") or Path(mesh.get("file", "")).stem


def _shrink_texture(texture: Element) -> None:
    attributes = {key: value for key in ("name", "type", "class") if (value := texture.get(key))}
    attributes.setdefault("name", Path(texture.get("file", "")).stem)
    if not attributes["name"]:
        del attributes["name"]
    texture.attrib.clear()
    texture.attrib.update(attributes, builtin="flat", width="8", height="8")


def _shrink_mesh(mesh: Element) -> None:
    attributes = {key: value for key in ("class",) if (value := mesh.get(key))}
    name = _mesh_name(mesh)
    mesh.attrib.clear()
    # The scale is explicit because MuJoCo rejects a tetrahedron scaled by a default of millimetres.
    mesh.attrib.update(attributes, name=name, vertex=TETRAHEDRON, scale="1 1 1")


def _refer_to_stock_file(element: Element, models: ModelDirectory, target: Path) -> None:
    """Link a file below the model directory into `target`; refer to any other file by its absolute path."""
    name = element.get("file")
    if name is None:
        return
    files = [path for directory in models.search_paths if (path := directory / name).is_file()]
    if not files:
        return
    stock = files[0].resolve()
    source = models.search_paths[0].resolve()
    if stock.is_relative_to(source):
        link = target / stock.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(stock)
        return
    if "name" not in element.attrib and element.tag in ("mesh", "hfield"):
        element.set("name", stock.stem)
    element.set("file", str(stock))
