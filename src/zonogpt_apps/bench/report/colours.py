"""The report's colours, light and dark: of the page, and of the pictures inside it."""

from __future__ import annotations

from zonogpt.support.plotting import INK, PAPER, STYLE

# (light, dark). Text has a contrast of at least 4.5 to what lies behind it; a test reads it off the page.
PAGE = {
    "paper": ("#fbfaf7", "#14191e"),
    "card": ("#ffffff", "#1c232a"),
    "ink": ("#22303c", "#e4e8ea"),
    "soft": ("#5c6b77", "#a3b0ba"),
    "line": ("#dcdfe1", "#35404a"),
    "accent": ("#5b2a86", "#c9a2ee"),
    "proved": ("#0b6e4f", "#5fd0a6"),
    "falsified": ("#b02a1c", "#ff8f80"),
    "unknown": ("#7a5a00", "#e6bd55"),
    "timeout": ("#5c6b77", "#a3b0ba"),
    "mark": ("#ead9fb", "#523274"),
}

# From little to much; the last is the colour of method E.
LEVELS = ("#e8e0f0", "#d6c6e4", "#ac8aca", "#8456aa", "#5b2a86")

# The dark counterparts of a picture's colours. A colour that is missing here is an error, not an invisible picture: see
# inline.py.
DARK = {
    INK: "#e4e8ea",
    PAPER: "#1c232a",
    str(STYLE["axes.edgecolor"]): "#6b7883",
    "#5b2a86": "#c9a2ee",  # E
    "#0c572f": "#32a964",  # A
    "#0541cf": "#4b72a1",  # F
    "#7a530e": "#fd9a06",  # D
    "#d57469": "#e42d20",  # M
    "#569ca4": "#29e3b7",  # crown
    "#958d04": "#fac66f",  # deepz
    "#ec3bd5": "#f925fb",  # covenn
    "#575e66": "#696e73",  # ibp
    "#111111": "#ffffff",  # attack
    "#7a8b99": "#a3b0ba",  # methods that have no colour of their own
    "#e8e0f0": "#332b45",
    "#d6c6e4": "#463863",
    "#ac8aca": "#6d5396",
    "#8456aa": "#9b77c7",
}


def variable(colour: str) -> str:
    """The CSS variable that stands for a picture's colour."""
    return f"--{colour.lstrip('#')}"


def rules() -> str:
    """The page's CSS rules: light or dark by the system's setting, unless the reader has chosen."""
    pictures = {variable(light): (light, dark) for light, dark in DARK.items()}
    both = {f"--{name}": pair for name, pair in PAGE.items()} | pictures
    light, dark = (f"color-scheme: {name};" + "".join(f" {key}: {pair[k]};" for key, pair in both.items())
                   for k, name in enumerate(("light", "dark")))  # fmt: skip
    return "\n".join(
        (
            f":root {{ {light} }}",
            f':root[data-theme="dark"] {{ {dark} }}',
            f'@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {dark} }} }}',
        )
    )
