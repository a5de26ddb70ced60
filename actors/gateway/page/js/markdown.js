// Markdown as DOM nodes. The text comes from a model, so it is data: every character becomes a text node, the elements are the
// ones created here, and no attribute has a value of the text except the address of a link, which must be http, https or mailto.
// Nothing is loaded: an image becomes a link to it.

const maxRows = 300; // of a table that is shown
const maxColumns = 30;
const maxDepth = 8; // of nested lists and quotes
const hiddenControls = /[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/g;

// render returns the nodes of a text, one element for each block.
export function render(text) {
  return splitBlocks(clean(text)).map((b) => renderBlock(b, 0));
}

// Incremental renders a growing text into a container. Blocks that did not change keep their elements, so that a selection
// stays and only the last block is built again.
export class Incremental {
  constructor(container) {
    this.container = container;
    this.sources = [];
  }

  update(text) {
    const blocks = splitBlocks(clean(text));
    const sources = blocks.map((b) => JSON.stringify(b));
    let same = 0;
    while (same < sources.length && same < this.sources.length && sources[same] === this.sources[same]) same++;
    while (this.container.children.length > same) this.container.lastElementChild.remove();
    for (const b of blocks.slice(same)) this.container.append(renderBlock(b, 0));
    this.sources = sources;
  }
}

// clean removes characters that change the order or the look of others without being seen.
function clean(text) {
  return String(text).replace(/\r\n?/g, "\n").replace(hiddenControls, "");
}

const fence = /^( {0,3})(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const heading = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const rule = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const bullet = /^( {0,3})([-*+])(\s+)(.*)$/;
const numbered = /^( {0,3})(\d{1,9})([.)])(\s+)(.*)$/;
const tableLine = /^\s*\|?(?:\s*:?-+:?\s*\|)+\s*:?-*:?\s*$/;

// splitBlocks returns the blocks of a text: {kind, ...}.
function splitBlocks(text) {
  const lines = text.split("\n");
  const blocks = [];
  let paragraph = [];
  const flush = () => {
    if (paragraph.length) blocks.push({ kind: "paragraph", text: paragraph.join("\n") });
    paragraph = [];
  };
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i];
    let m;
    if (line.trim() === "") {
      flush();
    } else if ((m = fence.exec(line))) {
      flush();
      const code = [];
      const closing = new RegExp("^ {0,3}" + m[2][0] + "{" + m[2].length + ",}\\s*$");
      let closed = false;
      for (i++; i < lines.length; i++) {
        if (closing.test(lines[i])) {
          closed = true;
          break;
        }
        code.push(lines[i]);
      }
      blocks.push({ kind: "code", language: m[3], text: code.join("\n"), closed });
    } else if (/^\s*\$\$/.test(line)) {
      flush();
      const math = [line];
      if (!/\$\$\s*$/.test(line.trim().slice(2))) {
        for (i++; i < lines.length; i++) {
          math.push(lines[i]);
          if (/\$\$\s*$/.test(lines[i])) break;
        }
      }
      blocks.push({ kind: "math", text: math.join("\n").trim().replace(/^\$\$|\$\$$/g, "").trim() });
    } else if ((m = heading.exec(line))) {
      flush();
      blocks.push({ kind: "heading", level: m[1].length, text: m[2] });
    } else if (rule.test(line) && !paragraph.length) {
      blocks.push({ kind: "rule" });
    } else if (/^ {0,3}>/.test(line)) {
      flush();
      const quoted = [];
      for (; i < lines.length && lines[i].trim() !== ""; i++) quoted.push(lines[i].replace(/^ {0,3}> ?/, ""));
      i--;
      blocks.push({ kind: "quote", text: quoted.join("\n") });
    } else if (line.includes("|") && i + 1 < lines.length && tableLine.test(lines[i + 1]) && !paragraph.length) {
      const head = splitCells(line);
      const align = splitCells(lines[i + 1]).map((c) => (/^:-+:$/.test(c) ? "center" : /-:$/.test(c) ? "right" : ""));
      const rows = [];
      for (i += 2; i < lines.length && lines[i].includes("|") && lines[i].trim() !== ""; i++) rows.push(splitCells(lines[i]));
      i--;
      blocks.push({ kind: "table", head, align, rows: rows.slice(0, maxRows), more: Math.max(0, rows.length - maxRows) });
    } else if ((bullet.test(line) || numbered.test(line)) && !(paragraph.length && numbered.test(line) && !/^ {0,3}1[.)]/.test(line))) {
      flush();
      const list = readList(lines, i);
      blocks.push(list.block);
      i = list.next - 1;
    } else {
      paragraph.push(line);
    }
  }
  flush();
  return blocks;
}

// readList reads a list that starts at line i.
function readList(lines, i) {
  const ordered = !bullet.test(lines[i]);
  const pattern = ordered ? numbered : bullet;
  const start = ordered ? Number(numbered.exec(lines[i])[2]) : 0;
  const items = [];
  while (i < lines.length) {
    const m = pattern.exec(lines[i]);
    if (!m) break;
    const indent = m[0].length - m[m.length - 1].length;
    const item = [m[m.length - 1]];
    for (i++; i < lines.length; i++) {
      const line = lines[i];
      const depth = line.length - line.trimStart().length;
      if (line.trim() === "") {
        const after = lines[i + 1] ?? "";
        if (after.trim() === "" || (after.length - after.trimStart().length < Math.min(indent, 2) && !pattern.test(after))) break;
        item.push("");
      } else if (depth >= Math.min(indent, 2) && depth > m[1].length) {
        item.push(line.slice(Math.min(depth, indent)));
      } else if (bullet.test(line) || numbered.test(line) || fence.test(line) || heading.test(line)) {
        break;
      } else if (item[item.length - 1] === "") {
        break;
      } else {
        item.push(line.trim());
      }
    }
    items.push(item.join("\n"));
    while (i < lines.length && lines[i].trim() === "" && i + 1 < lines.length && pattern.test(lines[i + 1])) i++;
  }
  return { block: { kind: "list", ordered, start, items }, next: i };
}

function splitCells(line) {
  const cells = line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((c) => c.replace(/\\\|/g, "|").trim());
  return cells.slice(0, maxColumns);
}

function element(name, ...children) {
  const e = document.createElement(name);
  e.append(...children);
  return e;
}

function renderBlock(b, depth) {
  switch (b.kind) {
    case "heading": {
      const e = element("h" + Math.min(6, b.level + 2), ...inline(b.text)); // the page has h1 and h2
      return e;
    }
    case "rule":
      return element("hr");
    case "code":
      return codeBlock(b.text, b.language);
    case "math": {
      const e = element("pre", element("code", b.text));
      e.className = "math";
      e.tabIndex = 0;
      return e;
    }
    case "quote": {
      if (depth >= maxDepth) return element("p", b.text);
      return element("blockquote", ...splitBlocks(b.text).map((x) => renderBlock(x, depth + 1)));
    }
    case "list": {
      const list = element(b.ordered ? "ol" : "ul");
      if (b.ordered && b.start > 1) list.start = b.start;
      for (const item of b.items) {
        const blocks = depth >= maxDepth ? [{ kind: "paragraph", text: item }] : splitBlocks(item);
        const tight = blocks.length && blocks[0].kind === "paragraph";
        const li = element("li", ...(tight ? inline(taskMark(blocks[0].text)) : []));
        li.append(...(tight ? blocks.slice(1) : blocks).map((x) => renderBlock(x, depth + 1)));
        list.append(li);
      }
      return list;
    }
    case "table":
      return table(b);
    default:
      return element("p", ...inline(b.text));
  }
}

// taskMark shows the box of a task list as a character.
function taskMark(text) {
  return text.replace(/^\[( |x|X)\] /, (_, mark) => (mark === " " ? "☐ " : "☑ "));
}

function table(b) {
  const row = (cells, name) => {
    const tr = element("tr");
    for (let i = 0; i < b.head.length; i++) {
      const cell = element(name, ...inline(cells[i] ?? ""));
      if (name === "th") cell.scope = "col";
      if (b.align[i]) cell.className = "align-" + b.align[i];
      tr.append(cell);
    }
    return tr;
  };
  const t = element("table", element("thead", row(b.head, "th")), element("tbody", ...b.rows.map((r) => row(r, "td"))));
  const box = element("div", t);
  box.className = "table";
  box.tabIndex = 0;
  box.setAttribute("role", "group"); // not a landmark: an answer may have many
  box.setAttribute("aria-label", "Table");
  if (b.more) box.append(element("p", `${b.more} more rows are not shown.`));
  return box;
}

// codeBlock returns a block of code with its language and a button that copies it.
export function codeBlock(text, language) {
  const pre = element("pre", element("code", text));
  pre.tabIndex = 0;
  const copy = element("button", "Copy");
  copy.type = "button";
  copy.className = "copy";
  copy.addEventListener("click", () => {
    navigator.clipboard.writeText(text).then(
      () => (copy.textContent = "Copied"),
      () => (copy.textContent = "Copying failed: select the text"),
    );
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  const head = element("figcaption", element("span", language || "text"), copy);
  const box = element("figure", head, pre);
  box.className = "code";
  return box;
}

// Inline marks in the order in which they are tried at a position.
const code = /^(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/;
const image = /^!\[([^\]]{0,500})\]\(\s*<?([^\s)>]{1,2000})>?[^)]{0,500}\)/;
const link = /^\[((?:[^[\]\\]|\\.|\[[^\]]{0,100}\]){1,500})\]\(\s*<?([^\s)>]{1,2000})>?(?:\s+["'(][^)]{0,500})?\)/;
const autolink = /^<?(https?:\/\/[^\s<>"')\]}]{1,2000}[^\s<>"')\]}.,;:!?])>?/;
const math = /^\$(?!\s)([^$\n]{1,500}?)(?<!\s)\$(?!\d)/;
const strong = /^(\*\*|__)(?=\S)([\s\S]{1,5000}?\S)\1/;
const emphasis = /^([*_])(?=\S)([^*_\n]{1,2000}?\S|\S)\1(?![\p{L}\p{N}])/u;
const deleted = /^~~(?=\S)([\s\S]{1,2000}?\S)~~/;

// inline returns the nodes of a line of text.
function inline(text, depth = 0) {
  const out = [];
  let plain = "";
  const flush = () => {
    if (plain) out.push(document.createTextNode(plain));
    plain = "";
  };
  const push = (node) => {
    flush();
    out.push(node);
  };
  for (let i = 0; i < text.length; ) {
    const c = text[i];
    if (c === "\\" && /[\\`*_{}[\]()#+\-.!|~$<>]/.test(text[i + 1] ?? "")) {
      plain += text[i + 1];
      i += 2;
      continue;
    }
    if (c === "\n") {
      push(document.createElement("br"));
      i++;
      continue;
    }
    let m = null;
    if ("`![<hH$*_~".includes(c)) {
      const rest = text.slice(i, i + 8000);
      const wordBefore = i > 0 && /[\p{L}\p{N}]/u.test(text[i - 1]);
      if (c === "`" && (m = code.exec(rest))) push(element("code", m[2].length > 2 && m[2].startsWith(" ") && m[2].endsWith(" ") ? m[2].slice(1, -1) : m[2]));
      else if (c === "!" && (m = image.exec(rest))) push(anchor(m[2], ["image: " + (m[1] || m[2])]));
      else if (c === "[" && (m = link.exec(rest))) push(anchor(m[2], depth < maxDepth ? inline(m[1], depth + 1) : [m[1]]));
      else if ((c === "<" || c === "h") && !wordBefore && (m = autolink.exec(rest))) push(anchor(m[1], [m[1]]));
      else if (c === "$" && (m = math.exec(rest))) {
        const e = element("code", m[1]);
        e.className = "math";
        push(e);
      } else if ((c === "*" || c === "_") && !(c === "_" && wordBefore) && depth < maxDepth) {
        if ((m = strong.exec(rest))) push(element("strong", ...inline(m[2], depth + 1)));
        else if ((m = emphasis.exec(rest))) push(element("em", ...inline(m[2], depth + 1)));
      } else if (c === "~" && depth < maxDepth && (m = deleted.exec(rest))) push(element("s", ...inline(m[1], depth + 1)));
    }
    if (m) {
      i += m[0].length;
    } else {
      plain += c;
      i++;
    }
  }
  flush();
  return out;
}

// anchor returns a link that shows its host, or plain text for an address that is not followed. The host is the one that the
// browser would connect to: in ASCII, so that look-alike letters show.
export function anchor(address, children) {
  let url;
  try {
    url = new URL(address);
  } catch {
    url = null;
  }
  if (!url || !["http:", "https:", "mailto:"].includes(url.protocol) || url.username || url.password) {
    return element("span", ...children, ` (${address})`);
  }
  const a = element("a", ...children);
  a.href = url.href;
  a.target = "_blank";
  a.rel = "noopener noreferrer nofollow";
  const shown = a.textContent;
  if (url.host && !shown.includes(url.host)) {
    const host = element("span", ` (${url.host})`);
    host.className = "host";
    a.append(host);
  }
  return a;
}
