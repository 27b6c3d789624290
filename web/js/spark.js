// A line of two minutes in a cell.

import { colour } from "./theme.js";

/** Draws `values` (null is unknown) into a canvas, from 0 to their most. */
export function spark(canvas, values, line) {
  const scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (!width || !height) return;
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
  const draw = canvas.getContext("2d");
  draw.setTransform(scale, 0, 0, scale, 0, 0);
  draw.clearRect(0, 0, width, height);
  let most = 0;
  for (const value of values) most = Math.max(most, value ?? 0);
  draw.strokeStyle = most > 0 ? line : colour("grid");
  draw.lineWidth = 1.25;
  draw.beginPath();
  let pen = false;
  values.forEach((value, at) => {
    if (value === null) {
      pen = false;
      return;
    }
    const x = (at / Math.max(1, values.length - 1)) * width;
    const y = height - 1.5 - (most > 0 ? value / most : 0) * (height - 3);
    if (pen) draw.lineTo(x, y);
    else draw.moveTo(x, y);
    pen = true;
  });
  draw.stroke();
}
