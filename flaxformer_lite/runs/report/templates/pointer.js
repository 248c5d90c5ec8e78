// Says the values of a chart at the pointer, at a finger, or at the arrow keys.
function nearest(steps, step) {
  const far = steps.map(each => Math.abs(each - step));
  return far.indexOf(Math.min(...far));
}

for (const plot of document.querySelectorAll(".plot")) {
  const lines = JSON.parse(plot.dataset.lines);
  const last = Number(plot.dataset.last);
  const [guide, said] = plot.querySelectorAll(".at, output");
  const steps = [...new Set(lines.flatMap(line => line.points.map(point => point[0])))].sort((a, b) => a - b);
  let at = steps.length - 1;

  function show(number) {
    at = Math.max(0, Math.min(steps.length - 1, number));
    const step = steps[at];
    const share = step / last;
    const words = [];
    for (const line of lines) {
      const [x, y] = line.points[nearest(line.points.map(point => point[0]), step)];
      words.push(`${line.label} ${Number(y.toPrecision(4))} at step ${x}`);
    }
    said.textContent = words.join("\n");
    guide.style.left = `${100 * share}%`;
    said.style.left = share < 0.5 ? `${100 * share}%` : "auto";
    said.style.right = share < 0.5 ? "auto" : `${100 - 100 * share}%`;
    plot.classList.add("read");
  }

  plot.addEventListener("pointermove", event => {
    const box = plot.getBoundingClientRect();
    const step = last * (event.clientX - box.left) / box.width;
    show(nearest(steps, step));
  });
  plot.addEventListener("keydown", event => {
    const move = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!move) return;
    event.preventDefault();
    show(at + move);
  });
  for (const name of ["pointerleave", "blur"]) {
    plot.addEventListener(name, () => plot.classList.remove("read"));
  }
}
