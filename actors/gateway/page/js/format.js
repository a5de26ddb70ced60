// Texts for numbers, times and states.

export function seconds(ms) {
  if (!Number.isFinite(ms) || ms < 0) return "";
  if (ms < 950) return `${Math.round(ms)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 9950 ? 1 : 0)} s`;
  const s = Math.round(ms / 1000);
  return `${Math.floor(s / 60)} min${s % 60 ? ` ${s % 60} s` : ""}`;
}

export function count(n, one, many = one + "s") {
  return `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
}

export const bytes = (n) => (n >= 1e9 ? `${(n / 1e9).toFixed(1)} GB` : n >= 1e6 ? `${Math.round(n / 1e6)} MB` : n > 0 ? `${Math.round(n / 1e3)} kB` : "–");

// age says how long ago a time was.
export function age(time, now = Date.now()) {
  const s = (now - new Date(time).getTime()) / 1000;
  if (!Number.isFinite(s)) return "";
  if (s < 60) return "just now";
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ago`;
  if (s < 86400 * 30) return `${Math.floor(s / 86400)} d ago`;
  return new Date(time).toLocaleDateString();
}

export const clock = (time) => new Date(time).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

// visible returns a text in which characters that are not seen or that reorder others are drawn as their code.
export function visible(text) {
  return String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]|\ud834[\udd73-\udd7a]|\udb40[\udc00-\uddef]/g, (c) => `⟦U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟧`);
}

// json returns a value as JSON with every character visible, and letters that are not ASCII in a host followed by their code.
export const json = (v, indent = 2) =>
  visible((typeof v === "string" ? v : (JSON.stringify(v, null, indent) ?? "")).replace(/\/\/[^\s"'<>/?#]+/g, (host) => host.replace(/(?![\x00-\x7f])[\p{L}\p{N}]/gu, (c) => `${c}⟦U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟧`)));

// grade returns the letter, the class and the words of a score from 1 to 5.
export function grade(score) {
  return (
    [null, { letter: "E", tone: "bad", words: "poor" }, { letter: "D", tone: "bad", words: "weak" }, { letter: "C", tone: "warn", words: "fair" }, { letter: "B", tone: "good", words: "good" }, { letter: "A", tone: "good", words: "excellent" }][Math.round(score)] ?? { letter: "?", tone: "", words: "not graded" }
  );
}

// browserName shortens a User-Agent to the browser and its system.
export function browserName(userAgent) {
  const find = (names) => names.find(([sign]) => userAgent.includes(sign))?.[1];
  const browser = find([["Firefox/", "Firefox"], ["Edg/", "Edge"], ["OPR/", "Opera"], ["Chrome/", "Chrome"], ["Safari/", "Safari"]]);
  const system = find([["Android", "Android"], ["iPhone", "iPhone"], ["iPad", "iPad"], ["Windows", "Windows"], ["Mac OS X", "macOS"], ["Linux", "Linux"]]);
  return browser ? browser + (system ? ` on ${system}` : "") : userAgent || "unknown";
}

// clientOf returns the name of the client whose session or question has this id, "" for one of the user.
export const clientOf = (id) => /^client_([^_]*)_/.exec(id ?? "")?.[1] ?? "";

// isLongPaste reports whether a pasted text is untrusted content and not the user's words: several lines, or more than 200 characters.
export function isLongPaste(text) {
  const s = text.trim();
  return /[\r\n\u2028\u2029]/.test(s) || [...s].length > 200;
}
