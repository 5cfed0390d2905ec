// The run's folder, dropped on the page or picked: read here, checked here, sent nowhere.
"use strict";
(() => {
  const section = document.getElementById("check-files"), zone = section.querySelector(".zone");
  const status = section.querySelector("[role=status]"), found = section.querySelector(".found");
  const page = { ...JSON.parse(document.getElementById("check-data").textContent), claims: JSON.parse(document.getElementById("chart-data").textContent).claims };
  const pause = () => new Promise((done) => setTimeout(done));

  // What was dropped, folders and all, as pairs of path and file: by handles, as a page opened from a file may not read
  // entries in Chromium; by entries where there are no handles.
  const into = async (handle, above) => {
    if (handle.kind === "file") return [[above + handle.name, await handle.getFile()]];
    const inside = [];
    for await (const one of handle.values()) inside.push(one);
    return (await Promise.all(inside.map((one) => into(one, `${above}${handle.name}/`)))).flat();
  };
  const entries = (reader) => new Promise((done, failed) => reader.readEntries(done, failed));
  const walk = async (entry, above) => {
    if (entry.isFile) return [[above + entry.name, await new Promise((done, failed) => entry.file(done, failed))]];
    const reader = entry.createReader(), inside = [];
    for (let some = await entries(reader); some.length; some = await entries(reader)) inside.push(...some);
    return (await Promise.all(inside.map((one) => walk(one, `${above}${entry.name}/`)))).flat();
  };
  // The folder is the one that holds certificate.json; of files without a folder, the raw ones are those it may list.
  const inFolder = (pairs) => {
    const tops = pairs.map(([path]) => path).filter((path) => path.split("/").at(-1) === RunFolder.CERTIFICATE).sort((a, b) => a.split("/").length - b.split("/").length);
    const top = tops.length ? tops[0].slice(0, -RunFolder.CERTIFICATE.length) : "";
    const flat = pairs.every(([path]) => !path.includes("/"));
    return pairs.filter(([path]) => path.startsWith(top)).map(([path, file]) => [path.slice(top.length), file])
      .map(([name, file]) => [flat && name in page.files ? RunFolder.RAW + name : name, file])
      .filter(([name]) => name === RunFolder.CERTIFICATE || name.startsWith(RunFolder.RAW));
  };

  const line = (mark, status, text) => {
    const item = document.createElement("li"), word = document.createElement("span");
    word.className = `status ${status}`;
    word.dataset.mark = mark;
    word.textContent = { passed: "agrees", failed: "differs", undecidable: "not shown" }[status];
    item.append(word, `: ${text}`);
    return item;
  };
  const MOST = 40;
  const show = ({ differs, agrees, skipped }) => {
    const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
    status.textContent = differs.length ? `Differs: ${count(differs.length, "difference")} found.` : `Agrees: ${count(agrees.length, "comparison")}, no difference.`;
    status.className = differs.length ? "failed" : "passed";
    const list = document.createElement("ul");
    for (const text of differs.slice(0, MOST)) list.append(line("✗", "failed", text));
    if (differs.length > MOST) list.append(line("✗", "failed", `and ${differs.length - MOST} more`));
    for (const text of agrees) list.append(line("✓", "passed", text));
    for (const text of skipped) list.append(line("?", "undecidable", text));
    found.replaceChildren(list);
  };
  const run = async (given) => {
    found.replaceChildren();
    const told = async (what) => {
      status.textContent = `Reading ${what} …`;
      await pause();
    };
    status.className = "";
    try {
      const files = new Map();
      for (const [name, file] of inFolder(await given())) {
        await told(name);
        files.set(name, new Uint8Array(await file.arrayBuffer()));
      }
      show(await RunCheck.check(files, page, told));
    } catch (error) {
      show({ differs: [`the folder cannot be read (${error.message}); the button above may read it`], agrees: [], skipped: [] });
    }
  };

  for (const input of section.querySelectorAll("input")) {
    input.addEventListener("change", () => input.files.length && run(() => [...input.files].map((file) => [file.webkitRelativePath || file.name, file])));
  }
  addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
  addEventListener("dragleave", (event) => event.relatedTarget || zone.classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    section.scrollIntoView();
    // Asked for now: after the event there is nothing left to ask.
    const items = [...event.dataTransfer.items].filter((item) => item.kind === "file"), files = [...event.dataTransfer.files];
    const handles = items.map((item) => item.getAsFileSystemHandle?.()).filter(Boolean);
    const inside = handles.length ? [] : items.map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    run(async () => {
      if (handles.length) return (await Promise.all(handles.map(async (handle) => into(await handle, "")))).flat();
      return inside.length ? (await Promise.all(inside.map((entry) => walk(entry, "")))).flat() : files.map((file) => [file.name, file]);
    });
  });
})();
