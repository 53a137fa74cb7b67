import json
import os
from pathlib import Path

import pytest

from pairloc.errors import InputError, shown
from pairloc.io import MANIFEST, output_folder, read_json, read_text, read_xml, sha256


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b'{"a": 1,}', "line 1, column"),
        (b'{\n"a": [1, 2\n', "line 3"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b"1" * 5000, "not valid JSON"),
    ],
)
def test_broken_json_names_the_file_and_the_place(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_json(file)
    assert str(file) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


BOMB = '<!DOCTYPE lolz [<!ENTITY lol "lol"><!ENTITY lol1 "&lol;&lol;&lol;">]><annotation>&lol1;</annotation>'
OUTSIDE = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation>&x;</annotation>'


@pytest.mark.parametrize("content", [BOMB, OUTSIDE, '<!DOCTYPE a SYSTEM "http://localhost/x.dtd"><a/>'])
def test_xml_with_a_dtd_is_refused_before_anything_is_expanded(tmp_path: Path, content: str) -> None:
    file = tmp_path / "x.xml"
    file.write_text(content)
    with pytest.raises(InputError, match="has a DTD"):
        read_xml(file)


@pytest.mark.parametrize(
    "content", ["<a><b></a>", "<a>&undefined;</a>", "plain", '<?xml version="1.0" encoding="nope"?><a/>']
)
def test_broken_xml_is_one_sentence(tmp_path: Path, content: str) -> None:
    file = tmp_path / "x.xml"
    file.write_text(content)
    with pytest.raises(InputError, match="not valid XML"):
        read_xml(file)


def test_xml_keeps_text_and_attributes(tmp_path: Path) -> None:
    file = tmp_path / "x.xml"
    file.write_text('<a x="1"><b>hot &amp; dög</b></a>', encoding="utf-8")
    root = read_xml(file)
    assert (root.get("x"), root.findtext("b")) == ("1", "hot & dög")


def test_text_may_start_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_bytes(b"\xef\xbb\xbfimage")
    assert read_text(file) == "image"


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_json(tmp_path / "none.json")


def test_messages_stay_short_whatever_they_show() -> None:
    assert shown([1] * 10**6) == "a list of 1000000"
    assert len(shown("x" * 10**6)) <= 60
    assert shown(10**10_000) == "a huge whole number"


def write(path: Path, made_by: str = "verb", text: str = "hello", **settings: object) -> None:
    with output_folder(path, made_by, settings) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "x.txt").write_text(text)


def test_an_output_folder_appears_whole_with_its_manifest(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    write(out, seed=1)
    manifest = json.loads((out / MANIFEST).read_text())
    assert manifest["made_by"] == "verb"
    assert manifest["settings"] == {"seed": 1}
    assert manifest["files"] == {"sub/x.txt": sha256(out / "sub" / "x.txt")}
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), output_folder(tmp_path / "out", "verb", {}) as folder:
        (folder / "half").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_the_same_work_may_be_done_again_and_keeps_foreign_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(out, seed=1)
    (out / "mine.txt").write_text("mine")
    write(out, seed=1, text="again")
    assert (out / "sub" / "x.txt").read_text() == "again"
    assert (out / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("made_by", "settings", "message"),
    [("other", {"seed": 1}, "output of 'verb'"), ("verb", {"seed": 2}, "other settings")],
)
def test_other_work_is_refused_untouched(
    tmp_path: Path, made_by: str, settings: dict[str, object], message: str
) -> None:
    out = tmp_path / "out"
    write(out, seed=1)
    with pytest.raises(InputError, match=message):
        write(out, made_by, text="new", **settings)
    assert (out / "sub" / "x.txt").read_text() == "hello"


def test_a_folder_of_somebody_else_or_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.txt").write_text("years")
    (tmp_path / "file").write_text("x")
    for name, message in (("theirs", "already holds other work"), ("file", "is a file")):
        with pytest.raises(InputError, match=message):
            write(tmp_path / name)


def test_an_empty_folder_is_welcome(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out")
    assert (tmp_path / "out" / MANIFEST).is_file()


def test_files_of_an_earlier_run_do_not_stay(tmp_path: Path) -> None:
    for names in (("a", "b"), ("b", "c")):
        with output_folder(tmp_path / "out", "verb", {}) as folder:
            for name in names:
                (folder / name).write_text("x")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["b", "c", MANIFEST]


def test_the_folder_one_stands_in_and_a_linked_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for out, real in ((Path(), "here"), (tmp_path / "link", "real")):
        write(out)
        assert (tmp_path / real / MANIFEST).is_file()


def test_pipes_and_devices_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path / "pipe.json", Path("/dev/zero")):
        with pytest.raises(InputError, match="not an ordinary file"):
            read_json(path)
