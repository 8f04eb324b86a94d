"""What the explorer adds to the head of its page: how figures are drawn there, and how clicks in them are told."""

# marimo's figures ask a distant server for MathJax, which none of ours needs; a script that the page seems to have
# tried already, and that is no script, keeps them from asking.
NO_MATHJAX = (
    '<script type="text/plain" data-status="error" '
    'src="https://cdn.jsdelivr.net/npm/mathjax-full@3.2.2/es5/tex-mml-svg.min.js"></script>'
)

# marimo has a changed figure drawn two or three times over, a few milliseconds apart; of these only the last one is.
# The first drawing of all is made at once, as marimo puts its listeners on it.
#
# Plotly tells of a click only where it has looked before what is under the pointer, and it looks at most every 50
# milliseconds: a click just after a redrawing, or after the pointer jumped, would be lost. It is told a little later.
PLOTLY = """<script>
(() => {
  const FOLLOW = 25, LOOKED = 120;
  const waiting = new Map(), heard = new WeakMap();
  let plotly;

  const hear = place => {
    const known = heard.get(place);
    const last = known ?? { told: 0 };
    heard.set(place, last);
    place.on("plotly_click", () => { last.told = performance.now(); });
    if (known) return;
    place.addEventListener("click", event => {
      if (!event.composedPath()[0].classList.contains("nsewdrag")) return;
      const came = performance.now();
      setTimeout(() => {
        const points = place._hoverdata;
        if (last.told < came - FOLLOW && points) place.emit("plotly_click", { points, event });
      }, LOOKED);
    });
  };

  const once = react => (place, ...how) => {
    if (!place._fullLayout) {
      const drawn = react(place, ...how);
      hear(place);
      return drawn;
    }
    const others = waiting.get(place);
    if (others) { others.how = how; return others.drawn; }
    const last = { how };
    waiting.set(place, last);
    return last.drawn = new Promise((done, failed) => setTimeout(() => {
      waiting.delete(place);
      if (place._fullLayout) react(place, ...last.how).then(done, failed); else done(place);
    }, FOLLOW));
  };

  Object.defineProperty(window, "Plotly", {
    configurable: true,
    get: () => plotly,
    set: loaded => { plotly = loaded; loaded.react = once(loaded.react); },
  });
})();
</script>"""

HEAD = NO_MATHJAX + PLOTLY
