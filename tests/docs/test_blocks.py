"""The extractor of blocks: what it finds, what it compares, and what it refuses."""

from __future__ import annotations

import pytest

from .blocks import Block, MarkerError, extract, matches, unmarked

PAGE = """\
# Title

```sh
plain
```

<!-- test -->
```sh title="first"
dbelief status
```

Text between.

<!-- output -->
```text
job ...
```

<!-- any other remark -->

Text.

<!-- test: long, exit 2 -->

```python
print(1)
```

* In a list:

    <!-- file: own/job.yaml -->
    ```yaml
    name: own

    shards: 1
    ```

<!-- not run: needs Kubernetes -->
````sh
```
kubectl
````
"""


def test_blocks_have_their_language_code_line_and_marker() -> None:
    plain, first, long, file, skipped = extract("page.md", PAGE)
    assert (plain.line, plain.language, plain.code, plain.kind) == (3, "sh", "plain\n", "")
    assert (first.line, first.language, first.code, first.kind) == (8, "sh", "dbelief status\n", "test")
    assert first.output is not None
    assert (first.output.place, first.output.code) == ("page.md:15", "job ...\n")
    assert (long.kind, long.exit_code, long.language, long.output) == ("long", 2, "python", None)
    assert (file.kind, file.argument, file.code) == ("file", "own/job.yaml", "name: own\n\nshards: 1\n")
    assert (skipped.kind, skipped.argument, skipped.code) == ("not run", "needs Kubernetes", "```\nkubectl\n")


def test_a_block_names_the_program_that_it_needs() -> None:
    (block,) = extract("page.md", "<!-- test: long, needs redis-server -->\n```sh\nx\n```\n")
    assert (block.kind, block.exit_code, block.needs) == ("long", 0, "redis-server")


def test_a_block_names_the_host_that_runs_it() -> None:
    (block,) = extract("page.md", "<!-- test: host 2 -->\n```sh\nx\n```\n<!-- output -->\n```text\ny\n```\n")
    assert (block.kind, block.argument, block.output is not None) == ("host", "2", True)


def test_blocks_without_a_marker_are_found() -> None:
    text = PAGE + "\n```yaml\na: 1\n```\n```text\nb\n```\n```python\nc\n```\n"
    assert [block.code for block in unmarked(extract("page.md", text))] == ["plain\n", "c\n"]


@pytest.mark.parametrize(
    ("marker", "kind", "exit_code"),
    [
        ("test", "test", 0),
        ("test: long", "long", 0),
        ("test: exit 2", "test", 2),
        ("test: long, exit 130", "long", 130),
    ],
)
def test_markers_of_blocks_that_are_run(marker: str, kind: str, exit_code: int) -> None:
    (block,) = extract("page.md", f"<!-- {marker} -->\n```sh\nx\n```\n")
    assert (block.kind, block.exit_code) == (kind, exit_code)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```sh\nx\n", "page.md:1: this fence does not end"),
        ("<!-- tset -->\n```sh\nx\n```", "page.md:1: 'tset' before a fence is no marker"),
        ("<!-- test: slow -->\n```sh\nx\n```", "page.md:1: 'test: slow' is no marker"),
        ("<!-- test, exit 2 -->\n```sh\nx\n```", "page.md:1: 'test, exit 2' before a fence is no marker"),
        ("<!-- test: long: exit 2 -->\n```sh\nx\n```", "page.md:1: 'test: long: exit 2' is no marker"),
        ("<!-- test: host x -->\n```sh\nx\n```", "page.md:1: 'test: host x' is no marker"),
        ("<!-- test: host 1 -->\n```yaml\nx\n```", "page.md:1: a test runs blocks of sh and python, not of yaml"),
        ("<!-- test: needs x -->\n```sh\nx\n```", "page.md:1: 'test: needs x' is no marker"),
        ("<!-- test, needs x -->\n```sh\nx\n```", "page.md:1: 'test, needs x' before a fence is no marker"),
        ("<!-- test -->\n```yaml\nx\n```", "page.md:1: a test runs blocks of sh and python, not of yaml"),
        ("<!-- test -->\n```\nx\n```", "page.md:1: a test runs blocks of sh and python, not of no language"),
        ("<!-- not run -->\n```sh\nx\n```", "page.md:1: `not run` needs a reason"),
        ("<!-- file: -->\n```yaml\nx\n```", "page.md:1: `file` needs a name"),
        ("<!-- file: ../x.yaml -->\n```yaml\nx\n```", "page.md:1: `file` needs a name"),
        ("<!-- file: /tmp/x.yaml -->\n```yaml\nx\n```", "page.md:1: `file` needs a name"),
        ("<!-- output: some numbers -->\n```text\nx\n```", "page.md:1: `output` allows `any numbers`"),
        ("```sh\nx\n```\n<!-- output -->\n```text\nx\n```", "page.md:5: no block that a test runs"),
        ("<!-- test -->\n\nText.\n\n```sh\nx\n```", "page.md:1: no fence follows the marker 'test'"),
        ("<!-- test -->\n<!-- output -->\n```sh\nx\n```", "page.md:1: no fence follows the marker 'test'"),
        ("Text.\n\n<!-- not run: why -->\n", "page.md:3: no fence follows the marker 'not run: why'"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(MarkerError) as error:
        extract("page.md", text)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("expected", "argument", "printed", "same"),
    [
        ("a b\n", "", "a  b   \n\n", True),
        ("a b\n", "", "a\nb\n", False),
        ("a\n", "", "a\nb\n", False),
        ("a\n...\n", "", "a\nb\nc\n", True),
        ("...: 1 of ...\nend\n", "", "x: 1 of 2\nend\n", True),
        ("1.5 (%)\n", "", "1x5 (%)\n", False),
        ("1.5 s\n", "", "1.6 s\n", False),
        ("1.5 s\n", "any numbers", "37 s\n", True),
        ("1,797 in 2:16, v2.\n", "any numbers", "12 in 8, v3.\n", True),
        ("98 %\n", "any numbers", "– %\n", False),
        ("3 ... 4\n", "any numbers", "8 of 9 and 7.0\n", True),
    ],
)
def test_output_is_compared_with_wildcards(expected: str, argument: str, printed: str, same: bool) -> None:
    assert matches(Block("page.md", 1, "text", expected, "output", argument), printed) is same
