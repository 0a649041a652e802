#!/usr/bin/env python3
"""`make docs`: docs/ as a site, by mdBook, in target/docs. Ends with 1 if a link in the site leads nowhere.

# Model       docs/*.md -> a copy whose links out of docs/ lead to the repository -> mdBook -> every href, src and anchor is looked up
# Limits      links to other sites are not followed: what needs the network fails for others' reasons
"""

import html.parser
import os
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
REPOSITORY = "https://github.com/hawser/hawser/blob/main/"
MDBOOK = "0.5.4"
BOOK = """[book]
title = "Hawser"
language = "en"
src = "src"
[build]
create-missing = false
[output.html]
git-repository-url = "https://github.com/hawser/hawser"
additional-css = ["site.css"]
[output.html.print]
enable = false
"""
# On a phone a table fits or is scrolled by itself, not the page, as code is. Shadows at their edges say
# that there is more, and the first column of a wide table stays. Words are not broken, but code is.
# The grounds of code are those of mdBook's themes.
CSS = """.table-wrapper { --ground: var(--bg); overflow-x: auto; }
.content pre > code { --ground: #f6f7f6; }
:is(.navy, .coal) .content pre > code { --ground: #1d1f21; }
.ayu .content pre > code { --ground: #191f26; }
.table-wrapper, .content pre > code {
  background:
    linear-gradient(to right, var(--ground) 1.2em, transparent) left / 2.4em 100% no-repeat local,
    linear-gradient(to left, var(--ground) 1.2em, transparent) right / 2.4em 100% no-repeat local,
    linear-gradient(to right, #8888, transparent) left / 0.9em 100% no-repeat,
    linear-gradient(to left, #8888, transparent) right / 0.9em 100% no-repeat,
    var(--ground);
}
.table-wrapper tbody tr:nth-child(2n) { background: color-mix(in srgb, var(--fg) 4%, transparent); }
.table-wrapper tr:has(> :nth-child(5)) > * { padding-inline: 8px; }
.content img { background: #fff; border-radius: 6px; }
@media (max-width: 620px) {
  .table-wrapper table { width: 100%; font-size: 0.85em; }
  .table-wrapper tr > :is(td, th) { padding: 4px 6px; vertical-align: top; }
  .table-wrapper code { white-space: pre-wrap; overflow-wrap: anywhere; padding-inline: 0; }
  .table-wrapper td:has(code) { min-width: 7em; }
  .table-wrapper tr:has(> :nth-child(4)) > :first-child { position: sticky; left: 0; min-width: 9em; overflow-wrap: anywhere; }
  .table-wrapper td:first-child { background: var(--bg); }
  .table-wrapper th:first-child { background: var(--table-header-bg); }
  .content pre code { font-size: 0.8em; }
}
"""


def mdbook():
    """The program; installed into target/mdbook where there is none."""
    own = TARGET / "mdbook/bin/mdbook"
    if found := os.environ.get("MDBOOK") or shutil.which("mdbook") or (str(own) if own.exists() else None):
        return found
    print(f"installing mdbook {MDBOOK} into {own.parents[1]}", file=sys.stderr)
    subprocess.run(["cargo", "install", "--quiet", "--locked", "mdbook", "--version", MDBOOK, "--root", str(own.parents[1])], check=True)
    return str(own)


def rewritten(page, text):
    """Links that leave docs/, or name a directory, as the site needs them."""
    def link(found):
        target = found.group(2)
        if "://" in target or target.startswith(("#", "mailto:")):
            return found.group(0)
        file, _, heading = target.partition("#")
        there = (page.parent / file).resolve()
        if there.is_dir() and (there / "README.md").exists() and there.is_relative_to(ROOT / "docs"):
            return f"{found.group(1)}{file.rstrip('/')}/index.md)"
        if there.is_relative_to(ROOT / "docs") and not there.is_dir():
            return f"{found.group(1)}{re.sub(r'README[.]md(?=#|$)', 'index.md', target)})"
        return f"{found.group(1)}{REPOSITORY}{there.relative_to(ROOT)}{'#' + heading if heading else ''})"

    parts = re.split(r"(^```.*?^```$|`[^`\n]*`)", text, flags=re.MULTILINE | re.DOTALL)
    # Text in backquotes within a link's words is split off too; the target stands after it.
    return "".join(part if i % 2 else re.sub(r"(\]\()([^)\s]+)\)", link, part) for i, part in enumerate(parts))


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.ids.add(value)
            elif name in ("href", "src") and value and tag in ("a", "img"):
                self.links.add(value)


def broken(site):
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html") if path.name not in ("404.html", "toc.html")}
    wrong, links = [], 0
    for path, page in pages.items():
        for target in page.links:
            parts = urllib.parse.urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            links += 1
            there = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            if there.is_dir():
                there /= "index.html"
            if not there.exists():
                wrong.append(f"{path.relative_to(site)}: {target}: there is no such page")
            elif parts.fragment and there in pages and urllib.parse.unquote(parts.fragment) not in pages[there].ids:
                wrong.append(f"{path.relative_to(site)}: {target}: there is no such heading")
    return sorted(wrong), links, len(pages)


def main():
    book = TARGET / "docs-source"
    site = TARGET / "docs"
    shutil.rmtree(book, ignore_errors=True)
    shutil.copytree(ROOT / "docs", book / "src", ignore=shutil.ignore_patterns("*.md"))
    for page in (ROOT / "docs").rglob("*.md"):
        # The page of a directory, which mdBook would rename without the links to it.
        name = "index.md" if page.name == "README.md" else page.name
        (book / "src" / page.relative_to(ROOT / "docs").with_name(name)).write_text(rewritten(page, page.read_text()))
    (book / "book.toml").write_text(BOOK)
    (book / "site.css").write_text(CSS)
    subprocess.run([mdbook(), "build", "--dest-dir", str(site), str(book)], check=True)
    wrong, links, pages = broken(site)
    for line in wrong:
        print(line, file=sys.stderr)
    print(f"{pages} pages with {links} links, {len(wrong)} of them broken: {site}/index.html")
    return 1 if wrong or not links else 0


if __name__ == "__main__":
    sys.exit(main())
