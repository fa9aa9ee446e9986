
// Put into replay pages by `shoal ui`: the page around them may steer them and hears where they are.
(() => {
  const replay = window.shoal;
  if (!replay || typeof replay.seek !== "function" || parent === window) return;
  let told = "";
  addEventListener("message", ({ source, data }) => {
    if (source !== parent || typeof data !== "object" || data === null) return;
    if (data.shoal === "seek" && Number.isFinite(data.time)) replay.seek(Math.min(Math.max(data.time, 0), replay.length - 1));
    if (data.shoal === "play") replay.play();
    if (data.shoal === "pause") replay.pause();
  });
  const tell = () => {
    const { time, playing, length } = replay;
    const now = `${time}/${playing}`;
    if (now !== told) parent.postMessage({ shoal: "at", time, playing, length }, "*");
    told = now;
    requestAnimationFrame(tell);
  };
  tell();
})();
