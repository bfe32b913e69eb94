"""Draw docs/pictures/architecture.svg, the picture of docs/explanation/architecture.md: roles, and what they exchange.

`python -m docs.pictures.architecture` writes it; `tests/packaging/test_documents.py` compares it with the script.
"""

from pathlib import Path

from docs.pictures.drawing import BLUE, GREEN, GREY, PINK, arrow, box, document, label


def picture() -> str:
    """The complete SVG document."""
    return document(
        940,
        600,
        "Roles of a job and what they exchange",
        box(
            350, 20, 240, 100, PINK, "coordinator", "members, data leases,", "evaluations, placement;", "no parameters"
        ),
        box(20, 30, 190, 80, GREY, "registry", "leader lease,", "state of the job"),
        box(730, 30, 190, 80, GREY, "run folder", "events, summary,", "snapshot sets, model"),
        box(
            30,
            300,
            300,
            118,
            BLUE,
            "shard 0, 1, …",
            "segments of the parameters w,",
            "state of the update rule, versions,",
            "ledger of each segment",
        ),
        box(30, 510, 300, 70, BLUE, "follower of each shard", "(replication: 2) the same content"),
        box(
            610,
            300,
            300,
            118,
            GREEN,
            "worker 0, 1, …",
            "model, data, mini-batches;",
            "threads: fetch, compute, push;",
            "ranks with grid",
        ),
        box(610, 510, 300, 70, GREEN, "other workers of the group", "(sync-sgd, sync-easgd 2 and 3)"),
        arrow(350, 70, 210, 70, both=True),
        label(280, 58, "state before", anchor="middle"),
        label(280, 92, "every reply"),
        arrow(590, 70, 730, 70),
        label(660, 58, "events,"),
        label(660, 92, "summary, model"),
        arrow(410, 120, 210, 300, both=True),
        label(235, 195, "commands: configure,", "snapshot, restore, fence,", "programs, migration", anchor="end"),
        arrow(530, 120, 730, 300, both=True),
        label(690, 195, "Join, Beat, Lease, Report", "leases of data, evaluations", anchor="start"),
        arrow(610, 335, 330, 335),
        label(470, 325, "push: gradient, version, number"),
        arrow(330, 368, 610, 368),
        label(470, 388, "fetch: parameters, versions"),
        label(470, 410, "through shared memory on one host"),
        arrow(180, 418, 180, 510),
        label(192, 460, "operation log,", "before the acknowledgement", anchor="start"),
        arrow(760, 418, 760, 510, both=True),
        label(748, 468, "sums by tree, ring or server", anchor="end"),
        arrow(330, 310, 745, 110, dashed=True),
        label(437, 238, "snapshot sets", anchor="end"),
    )


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture())
