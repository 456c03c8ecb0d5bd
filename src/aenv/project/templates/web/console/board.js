// What the console shows beside an instance and an episode. It runs in a frame without rights and without a network;
// `aenv.call` calls a function of the instance, and `aenv.on` hears of the instance, the episode and the chosen event.
const COLUMNS = ["to do", "doing", "done"];

function show(notes) {
  document.querySelector("#board").replaceChildren(
    ...COLUMNS.map((column) => {
      const section = document.createElement("section");
      const title = document.createElement("h2");
      title.textContent = column;
      const list = document.createElement("ul");
      for (const [text, where] of Object.entries(notes)) {
        if (where !== column) continue;
        const item = document.createElement("li");
        item.textContent = text;
        list.append(item);
      }
      section.append(title, list);
      return section;
    }),
  );
}

function say(text) {
  document.querySelector("#state").textContent = text;
}

// Beside an instance: ask it, now and then again.
aenv.on("instance", () => {
  async function refresh() {
    show(await aenv.call("board"));
    say("live");
  }
  refresh();
  setInterval(refresh, 2000);
});

// Beside an episode: results of both tools are the notes with their columns.
aenv.on("event", (event) => {
  const text = event.kind === "result" && event.content?.[0]?.text;
  if (!text) return;
  try {
    show(JSON.parse(text));
    say(`after event ${event.seq}`);
  } catch {
    say(text);
  }
});
