// Icons as paths of a 16 by 16 grid, drawn with the colour of the text.

import { svg } from "./lit-html.js";

const paths = {
  chat: "M2.5 3.5h11v7h-6l-3 2.5v-2.5h-2z",
  runs: "M2 4h6M5 8h8M3.5 12h5",
  approvals: "M8 2l5 2v4c0 3-2 5-5 6-3-1-5-3-5-6V4zM6 8l1.5 1.5L10.500 6.500",
  tasks: "M3 4h2v2H3zM11 3h2v2h-2zM11 11h2v2h-2zM5 5h3v-1h3M8 5v7h3",
  memory: "M3 4c0-1 2-1.500 5-1.500s5 .5 5 1.500-2 1.500-5 1.500S3 5 3 4zM3 4v8c0 1 2 1.500 5 1.500s5-.5 5-1.500V4M3 8c0 1 2 1.500 5 1.500s5-.5 5-1.500",
  agents: "M8 2.500a2.500 2.500 0 110 5 2.500 2.500 0 010-5zM3 13.500c0-3 2-4.500 5-4.500s5 1.500 5 4.500",
  bus: "M8 2.500v11M3 5h5M8 8h5M3 11h5M2 5h1M13 8h1M2 11h1",
  decisions: "M8 2v12M4 4h8M4 4l-2 5h4zM12 4l-2 5h4zM5 14h6",
  deliberations: "M2.500 3.500h7v5h-4l-2 1.500v-1.500h-1zM11 6h2.500v5h-1v1.500L10.500 11H7v-1",
  settings: "M2.500 5h6M11.500 5h2M2.500 11h2M7.500 11h6M10 3.500a1.500 1.500 0 110 3 1.500 1.500 0 010-3zM6 9.500a1.500 1.500 0 110 3 1.500 1.500 0 010-3z",
  models: "M4 4h8v8H4zM6.500 6.500h3v3h-3zM6 2v2M10 2v2M6 12v2M10 12v2M2 6h2M2 10h2M12 6h2M12 10h2",
  machines: "M2.500 3h11v7h-11zM6 13h4M8 10v3",
  doctor: "M2 8h3l1.500-4 3 8L11 8h3",
  more: "M3.500 8h.01M8 8h.01M12.500 8h.01",
  plus: "M8 3v10M3 8h10",
  send: "M8 13V3M4 7l4-4 4 4",
  stop: "M4.500 4.500h7v7h-7z",
  attach: "M12 7l-4.500 4.500a2.500 2.500 0 01-3.500-3.500L9 3a1.700 1.700 0 012.400 2.400L6.700 10",
  copy: "M6 6h7v7H6zM4 10H3V3h7v1",
  edit: "M3 13l.7-3L10.500 3.200l2.300 2.300L6 12.300z",
  retry: "M13 8a5 5 0 11-1.500-3.500M13 2.500v2.500h-2.500",
  up: "M5 7.500l2.500-5c1.500 0 1.500 1 1 4H13l-1 6H5zM5 7.500H3v6h2z",
  down: "M5 8.500l2.500 5c1.500 0 1.500-1 1-4H13l-1-6H5zM5 8.500H3v-6h2z",
  star: "M8 2.500l1.700 3.500 3.800.5-2.800 2.700.7 3.800L8 11.200 4.600 13l.7-3.800L2.500 6.500 6.300 6z",
  close: "M4 4l8 8M12 4l-8 8",
  search: "M7 2.500a4.500 4.500 0 110 9 4.500 4.500 0 010-9zM10.500 10.500l3 3",
  trash: "M3 4.500h10M6 4.500v-1.500h4v1.500M4.500 4.500l.5 9h6l.5-9",
  pin: "M6 2.500h4l-.5 4 2 2h-7l2-2zM8 8.500v5",
  panel: "M2.500 3h11v10h-11zM9.500 3v10",
  link: "M7 9l2-2M6.500 5.500L8 4a2.500 2.500 0 014 4l-1.500 1.500M9.500 10.500L8 12a2.500 2.500 0 01-4-4l1.500-1.500",
  export: "M8 2.500v7M5 6.500l3 3 3-3M3 11v2.500h10V11",
  end: "M8 3v10M4 9l4 4 4-4",
  lock: "M4 7.500h8v6H4zM5.500 7.500V5a2.500 2.500 0 015 0v2.500",
  globe: "M8 2.500a5.500 5.500 0 110 11 5.500 5.500 0 010-11zM2.500 8h11M8 2.500c-3 3-3 8 0 11M8 2.500c3 3 3 8 0 11",
  theme: "M8 2.500a5.500 5.500 0 100 11zM8 2.500a5.500 5.500 0 010 11",
  check: "M3 8.500l3 3 7-7",
  think: "M8 2.500a4 4 0 012.500 7c-.5.5-.5 1-.5 1.500H6c0-.5 0-1-.5-1.500A4 4 0 018 2.500zM6.500 13.500h3",
  tool: "M9.500 3a3 3 0 00-3 4L2.500 11l2.500 2.500 4-4a3 3 0 004-3.500l-2 1-1.500-1.500 1-2z",
  clock: "M8 2.500a5.500 5.500 0 110 11 5.500 5.500 0 010-11zM8 5v3l2 2",
  keys: "M2 5h12v7H2zM4.500 8h.01M8 8h.01M11.500 8h.01M5 10h6",
};

// icon returns an icon that assistive technology ignores: its button or link has a text.
export const icon = (name) => svg`<svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false"><path d=${paths[name] ?? paths.more}></path></svg>`;
