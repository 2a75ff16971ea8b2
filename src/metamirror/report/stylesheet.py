"""How the page looks: on paper-white and on dark ground, on a desk and on a phone."""

from __future__ import annotations

from metamirror.report.charts import colour_rules
from metamirror.report.styles import PALETTE

LIGHT = """--ground: #fff; --ink: #1d2026; --soft: #5c6470; --rule: #dcdfe5; --faint: #eef0f3;
  --good: #1a6e42; --bad: #b3261e; --link: #0a5fa8;"""
DARK = """--ground: #15181d; --ink: #e4e7ec; --soft: #a0a8b4; --rule: #353b45; --faint: #22272f;
  --good: #5fcf96; --bad: #ff8a7d; --link: #7db5f5;"""

RULES = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 76rem; background: var(--ground);
  color: var(--ink); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", "DejaVu Sans",
  sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; margin: 2.8rem 0 .6rem; padding-top: .7rem;
  border-top: 1px solid var(--rule); }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
h4 { font-size: .8rem; margin: .8rem 0 .3rem; color: var(--soft); font-weight: 600; }
p { margin: .4rem 0; max-width: 60rem; }
a { color: var(--link); }
nav ul, .legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem;
  padding: 0; margin: .6rem 0; font-size: .875rem; }
.legend li { display: flex; align-items: center; gap: .4rem; } .legend svg { flex: none; }
.note, .protocol { color: var(--soft); font-size: .875rem; }
.protocol { border-left: 3px solid var(--rule); padding-left: .7rem; }
.problem { color: var(--bad); font-size: .875rem; }
.good { color: var(--good); } .bad { color: var(--bad); }
small { display: block; color: var(--soft); font-size: .75rem; font-weight: 400; }
.scroll { overflow-x: auto; margin: .6rem 0 1rem; border: 1px solid var(--rule);
  border-radius: 6px; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; line-height: 1.35;
  font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .4rem .7rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--rule); }
thead th { color: var(--soft); font-weight: 600; font-size: .78rem; background: var(--faint);
  vertical-align: bottom; }
tbody tr:last-child > * { border-bottom: 0; }
tbody th { font-weight: 500; background: var(--ground); position: sticky; left: 0;
  max-width: 16rem; min-width: 8.5rem; overflow-wrap: anywhere; }
.number { text-align: right; white-space: nowrap; }
thead .number { white-space: normal; }
.bars { width: 30%; min-width: 7rem; vertical-align: middle; }
.bar { display: block; height: .7rem; border-radius: 2px; background: var(--c); }
.wide { min-width: 16rem; }
td small { max-width: 24rem; white-space: normal; min-width: 8rem; overflow-wrap: anywhere; }
.charts { display: grid; gap: 1rem; margin: .6rem 0;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); }
.charts.single { max-width: 32rem; }
figure { margin: 0; width: 100%; } figure svg { display: block; width: 100%; height: auto; }
.symbols { position: absolute; }
svg text { font: 11px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
  fill: var(--soft); }
svg .title { font-size: 12.5px; font-weight: 600; fill: var(--ink); }
svg .name { fill: var(--ink); }
.grid { stroke: var(--rule); stroke-width: .7; } .axis { stroke: var(--soft); }
.mark { stroke: var(--soft); stroke-dasharray: 2 3; }
.line polyline, .line line { fill: none; stroke: var(--c); stroke-width: 1.6;
  stroke-linejoin: round; }
.line use { fill: var(--c); stroke: var(--ground); stroke-width: .25; }
.line.faint polyline { stroke-width: .8; opacity: .45; }
.band { fill: var(--c); opacity: .13; }
details { margin: .2rem 0; } summary { cursor: pointer; }
details > section, details > div { margin-left: 1rem; }
summary > small { display: inline; margin-left: .8rem; }
td details ul { margin: .3rem 0; padding-left: 1.1rem; color: var(--soft); }
td details .inner { list-style: none; padding-left: 1rem; }
dl { margin: 0; display: grid; gap: 0 1.5rem; font-size: .82rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr)); }
dl > div { display: flex; justify-content: space-between; gap: 1rem;
  border-bottom: 1px dotted var(--rule); padding: .1rem 0; }
dt { color: var(--soft); white-space: nowrap; } dd { margin: 0; text-align: right; }
.narrow { display: none; }
@media (max-width: 40rem) {
  body { padding: 1rem .8rem 3rem; }
  th, td { padding: .35rem .5rem; }
  .broad { display: none; }
  .narrow, summary > small { display: block; }
}
@media print { .scroll { overflow: visible; } tbody th { position: static; } }
"""


def colours() -> str:
    """The colours of the page and of the methods, on both grounds."""
    light, dark = colour_rules()
    methods = " ".join(f".m{i} {{ --c: var(--m{i}); }}" for i in range(len(PALETTE)))
    return (
        f":root {{ color-scheme: light dark; {LIGHT} {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {DARK} {dark} }} }}\n"
        f"{methods}"
    )


def stylesheet() -> str:
    """Colours, then the rules."""
    return f"{colours()}{RULES}"
