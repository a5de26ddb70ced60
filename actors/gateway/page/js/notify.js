// Notifications of the browser: a call waits for the user, who looks at something else. They name the tool and nothing of the call, as
// others may see the screen.

const told = new Set(); // ids of the calls of which the user was told, or that the user saw

// permission is on, off, denied by the browser, or missing.
export function permission() {
  if (!("Notification" in window)) return "missing";
  if (Notification.permission === "denied") return "denied";
  return localStorage.getItem("notify") === "on" && Notification.permission === "granted" ? "on" : "off";
}

// toggle turns notifications on, for which the browser asks the user, or off. It returns the new permission.
export async function toggle() {
  if (permission() === "on") localStorage.setItem("notify", "off");
  else if (permission() === "off" && (await Notification.requestPermission()) === "granted") localStorage.setItem("notify", "on");
  return permission();
}

// tell shows a notification for each call that begins to wait while the page is not in view. open opens the approvals.
export function tell(approvals, open) {
  for (const [id, a] of approvals) {
    if (told.has(id)) continue;
    told.add(id);
    if (permission() !== "on" || (!document.hidden && document.hasFocus())) continue;
    const n = new Notification("Conclave waits for you", { body: a.form ? "A program asks you something." : `${a.tool ?? "A call"} needs your approval.`, tag: id });
    n.onclick = () => {
      window.focus();
      n.close();
      open();
    };
  }
  for (const id of told) if (!approvals.has(id)) told.delete(id);
}
