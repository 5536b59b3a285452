"""Random lines with nested markup and items."""

import random

WORDS = "the a man dog red big runs sees with hat on street and old young, house. tree! \u201ckind\u201d two".split()  # noqa: SIM905
TAGS = ("b", "i", "a", "span", "x-y")


def item(rng: random.Random) -> str:
    """Return a number, date, URL, e-mail address, placeholder or entity."""
    match rng.randrange(8):
        case 0:
            return f"{rng.randint(0, 10 ** rng.randint(1, 7)):,}"
        case 1:
            return f"{rng.randint(0, 10**4)}.{rng.randint(0, 999)}"
        case 2:
            return f"http://example.org/{rng.randint(0, 99)}/x?a={rng.choice('abc')}"
        case 3:
            return f"{rng.choice(['info', 'a.b', 'x+y'])}@mail{rng.randint(0, 9)}.example.org"
        case 4:
            return rng.choice(["{name}", "{0}", "{{ count }}", "${Total}"])
        case 5:
            return rng.choice(["%s", "%(x)d", "%1$s", "%.2f"])
        case 6:
            return rng.choice(["10:30", "1.2.3", "24/12/2020", "1990"])
        case _:
            return rng.choice(["&amp;", "&lt;", "&quot;", "R&amp;D", "&#233;"])


def marked_line(rng: random.Random, depth: int = 0, next_id: list[int] | None = None) -> str:
    """Return well-formed XML content with elements up to five levels deep; each element has an `id` of its own."""
    ids = [0] if next_id is None else next_id
    parts = []
    for _ in range(rng.randint(0 if depth else 1, 6)):
        kind = rng.random()
        if kind < 0.55:
            parts.append(rng.choice(WORDS))
        elif kind < 0.75:
            parts.append(item(rng))
        else:
            ids[0] += 1
            tag, attributes = rng.choice(TAGS), f'id="{ids[0]}" t="a &gt; \'b\'"'
            if rng.random() < 0.25 or depth == 4:
                parts.append(f"<{rng.choice(['br', 'img', 'z'])} {attributes}/>")
            else:
                parts.append(f"<{tag} {attributes}>{marked_line(rng, depth + 1, ids)}</{tag}>")
        parts.append(rng.choice([" ", " ", " ", ", ", ""]))
    return "".join(parts)
