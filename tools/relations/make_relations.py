"""Makes the relations that come with the program: templates, answer lists and examples, as one JSON file.

    python -m venv /tmp/relvenv && /tmp/relvenv/bin/pip install -r requirements.txt
    /tmp/relvenv/bin/python make_relations.py [TARGETS.json ...]

Each optional file holds facts whose targets must be answers of their relation; what is missing is added and reported.
Known shapes: `{"facts": [[entity, relation, target], ...]}`, `{"facts": [{relation, target_true, target_new}, ...]}`
and `{"rows": [{"entity", relation: target, ...}, ...]}`.
The output is the same for the same package versions and files.
"""

import argparse
import json
import pathlib
import sys

import curated
import sources
from asked import RELATIONS

OUTPUT = pathlib.Path(__file__).resolve().parents[2] / "crates" / "db" / "data" / "relations.json"
ENTITY_PLACE = "{e}"
# The file is part of the program.
SIZE_MAX_BYTES = 400_000
EXAMPLES_MAX = 3
# Names that fact files use for relations of ours.
OTHER_NAMES = {"born": "born in"}

# Relations that are missing here take any text as an answer.
ANSWERS = {
    "animal class": lambda: curated.items(curated.ANIMAL_CLASSES),
    "atomic number": sources.atomic_numbers,
    "born in": sources.countries,
    "capital": sources.capitals,
    "color": lambda: curated.items(curated.COLORS),
    "continent": lambda: curated.items(curated.CONTINENTS),
    "currency": sources.currencies,
    "demonym": sources.demonyms,
    "field": lambda: curated.items(curated.FIELDS),
    "genre": lambda: curated.items(curated.GENRES),
    "instrument": lambda: curated.items(curated.INSTRUMENTS),
    "language": sources.languages,
    "located in": sources.countries,
    "made of": lambda: curated.items(curated.MATERIALS),
    "occupation": lambda: curated.items(curated.OCCUPATIONS),
    "original language": sources.languages,
    "religion": lambda: curated.items(curated.RELIGIONS),
    "sport": lambda: curated.items(curated.SPORTS),
    "symbol": sources.symbols,
}


def targets_of(path):
    """(relation, target) pairs of a facts file, and the names of its other relations."""
    data = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    pairs = []
    for fact in data.get("facts", []):
        if isinstance(fact, list):
            pairs.append((fact[1], fact[2]))
        else:
            pairs += [(fact["relation"], fact[key]) for key in ("target_true", "target_new") if key in fact]
    for row in data.get("rows", []):
        pairs += [(name, target) for name, target in row.items() if isinstance(target, str) and name != "entity"]
    pairs = {(OTHER_NAMES.get(name, name), target) for name, target in pairs}
    return {pair for pair in pairs if pair[0] in ANSWERS}, {name for name, _ in pairs if name not in ANSWERS}


def sort_key(answer):
    """Numbers by value, then text."""
    return (0, int(answer), answer) if answer.isdecimal() else (1, 0, answer)


def check(relation):
    """Stops at whatever a reader of the file may rely on and this relation lacks."""
    name = relation["name"]
    templates = relation["templates"]
    assert 3 <= len(relation["templates"]) <= 5, f"{name}: {len(relation['templates'])} templates"
    assert len(set(templates)) == len(templates), f"{name}: a template twice"
    for template in templates:
        assert template.count(ENTITY_PLACE) == 1, f"{name}: not one place for the entity in {template!r}"
        assert template == " ".join(template.split()), f"{name}: stray space in {template!r}"
        assert template.replace(ENTITY_PLACE, "").isascii(), f"{name}: not ASCII: {template!r}"
    answers = relation["answers"]
    assert len(set(answers)) == len(answers), f"{name}: an answer twice"
    assert len({answer.casefold() for answer in answers}) == len(answers) or name == "symbol", f"{name}: differ by case"
    for answer in answers:
        assert answer and answer == " ".join(answer.split()), f"{name}: stray space in {answer!r}"
    assert 1 <= len(relation["examples"]) <= EXAMPLES_MAX, f"{name}: {len(relation['examples'])} examples"
    for entity, target in relation["examples"]:
        assert entity and target, f"{name}: an empty example"
        assert not answers or target in answers, f"{name}: example target {target!r} is no answer"


def block(relation):
    """The relation as JSON, one key per line."""
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in relation.items()]
    return "{\n" + ",\n".join(lines) + "\n}"


def main():
    parser = argparse.ArgumentParser(description="Makes the relations that come with the program.")
    parser.add_argument("targets", nargs="*", help="facts whose targets must be answers")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=OUTPUT)
    args = parser.parse_args()

    answers = {name: set(make()) for name, make in ANSWERS.items()}
    for path in args.targets:
        pairs, unknown = targets_of(path)
        added = sorted(pair for pair in pairs if pair[1] not in answers[pair[0]])
        for name, target in added:
            answers[name].add(target)
        report = f"{len(pairs)} targets, {len(added)} added {added}, other relations {sorted(unknown)}"
        print(f"{path}: {report}", file=sys.stderr)

    relations = []
    for name, kind, templates, examples in sorted(RELATIONS):
        relation = {
            "name": name,
            "type": kind,
            "templates": templates,
            "answers": sorted(answers.get(name, ()), key=sort_key),
            "examples": sorted(examples),
        }
        check(relation)
        relations.append(relation)
    names = [relation["name"] for relation in relations]
    assert len(set(names)) == len(names), "a relation twice"
    assert set(ANSWERS) <= set(names), "answers of no relation"

    text = '{"relations": [\n' + ",\n".join(block(relation) for relation in relations) + "\n]}\n"
    assert json.loads(text) == {"relations": relations}, "the text says what was meant"
    size = len(text.encode("utf-8"))
    assert size <= SIZE_MAX_BYTES, f"{size} bytes"
    args.output.write_text(text, encoding="utf-8")
    for relation in relations:
        counts = [len(relation[key]) for key in ("templates", "answers", "examples")]
        print("{:18} {:2} templates {:4} answers {} examples".format(relation["name"], *counts))
    print(f"{size} bytes")


if __name__ == "__main__":
    main()
