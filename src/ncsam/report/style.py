"""The style sheet of `report.html`: light and dark, wide and narrow, no file or font from elsewhere."""

STYLE = """
:root {
  color-scheme: light dark;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif;
  --mono: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace;
  --page: #f6f7f9; --card: #ffffff; --ink: #1d2330; --muted: #5b6475; --grid: #dfe3ea; --line: #d5dae3;
  --accent: #0072b2; --good: #00724f; --bad: #b34a00;
  --series-0: #0072b2; --series-1: #d55e00; --series-2: #009e73; --series-3: #cc79a7; --series-4: #e69f00;
  --series-5: #56b4e9; --series-6: #7f7f7f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #12151b; --card: #1a1f28; --ink: #e8ebf1; --muted: #a2acbd; --grid: #2c3441; --line: #323b49;
    --accent: #5db4ea; --good: #45c99d; --bad: #ff9c5b;
    --series-0: #4ea8e6; --series-1: #ff8642; --series-2: #2cc498; --series-3: #e39cc4; --series-4: #f5bd41;
    --series-5: #a5dcff; --series-6: #a3a3a3;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 var(--sans); }
main { max-width: 1120px; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: clamp(1.5rem, 4vw, 2.1rem); line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.01em; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
p { margin: .4rem 0 .8rem; max-width: 75ch; }
.quiet { color: var(--muted); font-size: .92rem; }
.facts { display: flex; flex-wrap: wrap; gap: .4rem .5rem; margin: 1rem 0 0; padding: 0; list-style: none; }
.facts li { background: var(--card); border: 1px solid var(--line); border-radius: 999px; padding: .12rem .75rem;
  font-size: .9rem; }
.facts b { font-weight: 600; }
.facts span { color: var(--muted); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .9rem 1rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 10px; background: var(--card); }
table { border-collapse: collapse; font-size: .93rem; min-width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .5rem .8rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--grid); }
tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--muted); font-weight: 600; font-size: .86rem; }
th:first-child, td:first-child { text-align: left; }
.summary th:first-child { position: sticky; left: 0; background: var(--card); font-weight: 600; }
.std { color: var(--muted); font-size: .84em; display: block; line-height: 1.2; }
.top { font-weight: 700; color: var(--accent); }
.top::after { content: " ●"; font-size: .6em; vertical-align: .25em; }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; margin: .2rem 0 .8rem; padding: 0; list-style: none;
  font-size: .92rem; }
.legend li { display: inline-flex; align-items: center; gap: .5rem; }
.legend svg { width: 34px; height: 10px; flex: none; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 420px), 1fr)); gap: 1rem; }
.figures + .figures { margin-top: 1rem; }
.figures.small { grid-template-columns: repeat(auto-fill, minmax(min(100%, 310px), 1fr)); }
figure { margin: 0; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { color: var(--muted); font-size: .85rem; }
.matrix { width: auto; min-width: 0; font-size: .82rem; }
.matrix th, .matrix td { padding: .25rem .4rem; text-align: center; border: 0; min-width: 2.7rem; }
.matrix tbody th { text-align: right; color: var(--muted); font-weight: 500; }
.matrix td { background: color-mix(in srgb, var(--accent) calc(var(--share) * 75%), transparent); border-radius: 3px; }
.matrix td.zero { color: transparent; }
.corner { color: var(--muted); font-size: .8rem; font-weight: 400; }
.gallery { display: grid; grid-template-columns: repeat(auto-fill, minmax(118px, 1fr)); gap: .8rem; }
.gallery figure { background: var(--card); border: 1px solid var(--line); border-radius: 8px; overflow: hidden; }
.gallery img { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; background: #8883; }
.gallery img.tiny { image-rendering: pixelated; }
.gallery p { margin: 0; padding: .5rem .55rem 0; font-size: .85em; line-height: 1.35; overflow-wrap: anywhere; }
.gallery figcaption { padding: .4rem .55rem .5rem; line-height: 1.35; overflow-wrap: anywhere; }
.gallery s { color: var(--bad); text-decoration-thickness: 1px; }
.gallery b { color: var(--good); font-weight: 600; }
.gallery small { display: block; color: var(--muted); }
details { margin: .7rem 0; }
summary { cursor: pointer; font-weight: 600; padding: .2rem 0; }
details > .gallery, details > .scroll, details > pre { margin-top: .6rem; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .8rem 1rem; margin: 0;
  font: .84rem/1.6 var(--mono); white-space: pre-wrap; overflow-wrap: anywhere; }
code { font: .92em var(--mono); overflow-wrap: anywhere; }
.config td { text-align: left; white-space: normal; overflow-wrap: anywhere; font: .84rem var(--mono); }
.config th { text-align: left; font-weight: 500; color: var(--muted); }
.note { border-left: 3px solid var(--bad); padding: .3rem .9rem; margin: .6rem 0; background: var(--card); }
ul.plain { margin: .6rem 0; padding-left: 1.2rem; color: var(--muted); font-size: .88rem; }
footer { margin-top: 3rem; color: var(--muted); font-size: .85rem; }
@media (max-width: 560px) {
  main { padding: 1.2rem .8rem 3rem; }
  .card { padding: .6rem .5rem; }
  th, td { padding: .4rem .55rem; }
  .gallery { grid-template-columns: repeat(auto-fill, minmax(96px, 1fr)); gap: .5rem; }
}
@media print { body { background: #fff; } .card, .scroll { break-inside: avoid; } }
"""
