"""`dbelief help`: every page in 80 columns, without markers, and clear errors for what is no topic."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dbelief.cli.help_topics import SECTIONS, as_plain, topics
from dbelief.cli.main import main

DOCS = Path(__file__).parents[3] / "docs"
TOPICS = [name for section in SECTIONS for name in topics(section)]


def shown(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(main, ["help", *arguments], prog_name="dbelief")


def test_every_page_is_listed_in_one_line_of_80_columns() -> None:
    lines = shown().output.splitlines()
    for section in SECTIONS:
        for page in DOCS.glob(f"{section}/*.md"):
            (line,) = [line for line in lines if line.startswith(f"  {page.stem} ")]
            assert line.endswith(page.read_text().partition("\n")[0].removeprefix("# "))
    assert max(map(len, lines)) <= 80
    assert len(set(TOPICS)) == len(TOPICS), "a topic is one page"


def test_a_page_is_shown_without_markers_links_and_markdown() -> None:
    done = shown("codecs")
    assert done.exit_code == 0
    assert "Codecs: fewer bytes on the wire" in done.output.splitlines()[0]
    assert "wire: {push: one-bit, pull: bf16}" in done.output
    assert not re.search(r"<!--|\]\(|```|\*\*", done.output)
    assert max(map(len, done.output.splitlines())) <= 80


@pytest.mark.parametrize("topic", TOPICS)
def test_no_page_keeps_a_comment_or_a_link(topic: str) -> None:
    (text,) = [(DOCS / section / f"{topic}.md").read_text() for section in SECTIONS if topic in topics(section)]
    plain = as_plain(text)
    assert "<!--" not in plain
    assert not re.search(r"\]\([\w./#-]+\)", plain)
    codes = re.findall(r"^ *```.*?^ *```", text, re.MULTILINE | re.DOTALL)
    assert all(code in plain for code in codes), "code blocks stay as they are"


def test_long_words_of_tables_are_not_cut() -> None:
    assert "…" not in shown("architecture").output


def test_hyphens_are_underscores() -> None:
    assert shown("torch-model").output == shown("torch_model").output


def test_a_command_has_its_options_and_the_page_of_its_name() -> None:
    assert (
        shown("train").output.rstrip()
        == CliRunner().invoke(main, ["train", "--help"], prog_name="dbelief").output.rstrip()
    )
    both = shown("scale").output
    assert "Usage: dbelief scale [OPTIONS]" in both
    assert "Change the number of workers and shards" in both


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("donwpour", "help: no topic or command 'donwpour', did you mean downpour? (`dbelief help` lists the topics)"),
        ("tracc", "help: no topic or command 'tracc', did you mean track or train? (`dbelief help` lists the topics)"),
        ("qqqq", "help: no topic or command 'qqqq' (`dbelief help` lists the topics)"),
    ],
)
def test_an_unknown_topic_is_an_error_with_what_is_near(name: str, message: str) -> None:
    done = shown(name)
    assert (done.exit_code, done.output) == (2, f"Error: {message}\n")
