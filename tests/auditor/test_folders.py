"""An evidence folder is read as it was written or not at all; the command says what it found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from auditor.story import PAID, objects_added, sound, target_object
from effect_chaos import records
from effect_chaos.auditor import audit, idle
from effect_chaos.records import RecordInvalid


def _edited(name: str, edit: Callable[[str], str]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).write_text(edit((folder / name).read_text()))

    return apply


def _member(name: str, member: str, value: object) -> Callable[[Path], None]:
    def edit(text: str) -> str:
        first, _, rest = text.partition("\n")
        return json.dumps({**json.loads(first), member: value}) + "\n" + rest

    return _edited(name, edit)


def _gone(folder: Path) -> None:
    (folder / records.OBJECTS_FILE).unlink()


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    evidence = sound()
    records.write(tmp_path, evidence)
    assert records.read(tmp_path) == evidence


@pytest.mark.parametrize(
    ("damage", "where"),
    [
        (_gone, "objects.jsonl"),
        (_edited(records.HISTORY_FILE, lambda text: text[:-10]), "history.jsonl"),
        (_edited(records.HISTORY_FILE, lambda text: text.rstrip("\n")), "no end"),
        (_edited(records.HISTORY_FILE, lambda text: text.replace('"n":1,', "", 1)), "jsonl:1"),
        (_edited(records.HISTORY_FILE, lambda text: '{"n":1,"n":1}\n' + text), "twice"),
        (_edited(records.ROWS_FILE, lambda text: "[]\n"), "rows.jsonl:1"),
        (_member(records.HISTORY_FILE, "n", "1"), "n: '1' is no int"),
        (_member(records.HISTORY_FILE, "n", True), "n: True is no int"),
        (_member(records.HISTORY_FILE, "verb", "guess"), "no Verb"),
        (_member(records.HISTORY_FILE, "answer", {"status": 200}), "Answer has missing"),
        (_member(records.HISTORY_FILE, "extra", 1), "extra"),
        (_member(records.OPERATIONS_FILE, "safety", "safe"), "no Safety"),
        (_member(records.OPERATIONS_FILE, "legal_states", "succeeded"), "legal_states"),
        (_member(records.OPERATIONS_FILE, "legal_states", [1]), "legal_states"),
        (_member(records.OPERATIONS_FILE, "marker", None), "marker"),
        (_edited(records.RUN_FILE, lambda text: text.replace('"seed": 7', '"seed": "7"')), "seed"),
        (_edited(records.RUN_FILE, lambda text: text.replace(": 2", ": [2]")), "settings"),
        (_edited(records.RUN_FILE, lambda text: "{"), "run.json"),
    ],
)
def test_a_damaged_folder_is_refused_with_the_place(
    tmp_path: Path, damage: Callable[[Path], None], where: str
) -> None:
    records.write(tmp_path, sound())
    damage(tmp_path)
    with pytest.raises(RecordInvalid, match=where):
        records.read(tmp_path)


def _audited(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "effect_chaos.auditor", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_command_passes_a_sound_folder(tmp_path: Path) -> None:
    records.write(tmp_path, sound())
    done = _audited(tmp_path)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "no violation")


def test_the_command_fails_on_a_violation_and_names_it(tmp_path: Path) -> None:
    records.write(tmp_path, objects_added(target_object(PAID, 3, 2))(sound()))
    done = _audited(tmp_path)
    assert done.returncode == 1
    assert "no_duplicate: a/pay:1: 2 effects" in done.stdout


def test_the_command_says_what_nothing_was_checked_for(tmp_path: Path) -> None:
    evidence = sound()
    safe = tuple(o for o in evidence.operations if o.safety is not records.Safety.UNSAFE)
    markers = {o.marker for o in safe}
    records.write(
        tmp_path,
        replace(
            evidence,
            operations=safe,
            arrivals=tuple(a for a in evidence.arrivals if any(m in a.text for m in markers)),
            objects=tuple(o for o in evidence.objects if any(m in o.text for m in markers)),
        ),
    )
    done = _audited(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "nothing was checked by: unsafe_once" in done.stdout


def test_the_command_fails_where_a_rule_should_have_had_something_to_compare(
    tmp_path: Path,
) -> None:
    """Nobody has read a receipt: nothing is broken, and that a receipt is right is not shown."""
    evidence = sound()
    unread = tuple(c for c in evidence.history if c.verb is not records.Verb.RECEIPT)
    records.write(tmp_path, replace(evidence, history=unread))
    done = _audited(tmp_path)
    assert done.returncode == 1, done.stdout
    assert "there was to be something for: own_object" in done.stdout
    assert done.stdout.splitlines()[-1] == "no violation"


def test_a_workload_of_all_classes_owes_something_to_every_rule() -> None:
    verdicts = audit(sound())
    assert [verdict.rule.name for verdict in verdicts if not verdict.owed] == []
    assert idle(verdicts) == ()


def test_an_audit_over_nothing_does_not_pass(tmp_path: Path) -> None:
    empty = replace(sound(), operations=(), history=(), arrivals=(), objects=(), rows=())
    records.write(tmp_path, empty)
    done = _audited(tmp_path)
    assert done.returncode == 1
    assert "NOTHING CHECKED" in done.stdout


def test_the_command_refuses_a_folder_that_it_cannot_read(tmp_path: Path) -> None:
    done = _audited(tmp_path)
    assert done.returncode == 2
    assert "run.json" in done.stderr
