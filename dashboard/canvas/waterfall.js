// The waterfall of a request: keeps itself on its element from one refresh to the next.

export default function (component) {
  const box = component.parentElement.querySelector(".canvas-box");
  if (box.waterfall) box.waterfall.adopt(component);
  else box.waterfall = new Waterfall(component.parentElement, component);
  box.waterfall.speak();
  return () => { if (box.waterfall) { box.waterfall.close(); box.waterfall = null; } };
}
