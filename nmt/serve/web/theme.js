/** The color theme of the page, which the browser stores for later visits. */

const select = document.getElementById("theme");

/** Show the stored theme and enable the selection of others; calls onChange after each change of colors. */
export function enableThemes(onChange) {
  const show = () => {
    document.documentElement.dataset.theme = select.value;
    onChange();
  };
  select.value = storage()?.getItem("nmt-theme") ?? "auto";
  show();
  select.addEventListener("change", () => {
    storage()?.setItem("nmt-theme", select.value);
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
}

/** Return the browser's storage, or null if it is blocked. */
function storage() {
  try {
    return localStorage;
  } catch {
    return null;
  }
}
