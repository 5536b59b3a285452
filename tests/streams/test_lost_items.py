"""Items that translations lack are found, without false alarms."""

import pytest

from nmt.streams.lost_items import LostItems


@pytest.mark.parametrize(
    ("text", "translation", "kinds"),
    [
        ("I have <b>a dog</b>.", "Ich habe Unglück.", {"markup"}),
        ("one<br>two <img src='a'>", "eins zwei", {"markup"}),
        ("I have {count} cats: %s", "Ich habe Katzen", {"placeholders"}),
        ("see http://a.org or a@b.org", "siehe", {"urls", "emails"}),
        ("see WWW.a.org", "siehe", {"urls"}),
        ("I have <b>{n}</b> at www.a.org", "<b>Ich</b> habe {n} auf www.a.org", set()),
        ("if a < b and c > d", "wenn a kleiner ist", set()),
        ("if a<b and c>d", "wenn a kleiner ist", set()),
        ("<b>", "", set()),
        ("I <3 it, 100% sure, 50% discount @ noon, see <me@b>", "Ich", set()),
        ("100%", "100 %", set()),
    ],
)
def test_only_lost_items_are_found(text: str, translation: str, kinds: set[str]) -> None:
    assert LostItems.find([(text, translation)], ()) == LostItems(int(bool(kinds)), sorted(kinds))
    assert LostItems.find([(text, translation)], kinds) == LostItems()


def test_the_warning_names_kinds_and_option() -> None:
    lost = LostItems.find([("<b>a</b>", "b"), ("%s", "c")], ())
    assert lost + LostItems() == LostItems(2, ["markup", "placeholders"])
    end = "that their translations lack; use --keep numbers,markup,placeholders"
    assert lost.describe(["numbers"]) == f"2 lines have tags or placeholders {end}"
    assert LostItems(1, ["urls"]).describe([]) == "1 line has URLs that its translation lacks; use --keep urls"
