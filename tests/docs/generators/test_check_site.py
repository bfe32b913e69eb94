from pathlib import Path

import pytest

from docs.generators.check_site import fetched, main


def _site(folder: Path, page: str, style: str = "") -> Path:
    (folder / "index.html").write_text(page)
    (folder / "site.css").write_text(style)
    return folder


def test_links_and_own_files_are_fine(tmp_path: Path) -> None:
    page = '<link rel="stylesheet" href="site.css"><script src="a.js"></script><a href="https://example.org/">x</a>'
    main(_site(tmp_path, page, "p { background: url('data:image/svg+xml,%3Csvg%3E') }"))


@pytest.mark.parametrize(
    ("page", "style"),
    [
        ('<script src="https://example.org/a.js"></script>', ""),
        ('<img src="//example.org/a.png">', ""),
        ('<link rel="preconnect" href="https://example.org">', ""),
        ('<p style="background: url(https://example.org/a.png)">', ""),
        ("<p>", '@import "https://example.org/a.css";'),
        ("<p>", "p { background: url(//example.org/a.png) }"),
    ],
)
def test_what_a_browser_would_fetch_from_a_network_is_refused(tmp_path: Path, page: str, style: str) -> None:
    site = _site(tmp_path, page, style)
    assert len(list(fetched(site))) == 1
    with pytest.raises(SystemExit, match="fetched from a network"):
        main(site)


def test_a_site_without_pages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds no pages"):
        main(tmp_path)
