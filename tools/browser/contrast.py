"""The contrast of text on a page (WCAG 2.2, section 1.4.3)."""

CONTRASTS = """selector => {
  const light = c => (c /= 255) <= 0.04 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const read = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  return [...document.querySelectorAll(selector)].map(node => {
    let under = node;
    const clear = () => /rgba\\(.* 0\\)|transparent/.test(getComputedStyle(under).backgroundColor);
    while (clear() && under.parentElement) under = under.parentElement;
    const pair = [getComputedStyle(node).color, getComputedStyle(under).backgroundColor];
    const [a, b] = pair.map(colour => luminance(read(colour)) + 0.05);
    return Math.max(a, b) / Math.min(a, b);
  });
}"""


def lowest_contrast(page, selector):
    """Returns the lowest contrast of a selector's elements with what is behind them."""
    return min(page.evaluate(CONTRASTS, selector))
