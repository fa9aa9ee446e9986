// Settings as dotted names, and what differs between runs.

// { a: { b: 1 } } as { "a.b": 1 }; lists stay whole.
export function flatten(config, prefix = "", found = {}) {
  for (const [key, value] of Object.entries(config ?? {})) {
    const name = prefix ? `${prefix}.${key}` : key;
    if (value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length) flatten(value, name, found);
    else found[name] = value;
  }
  return found;
}

// What a run was told to do, without when, where and by which version it was done.
export function chosen(config) {
  const { provenance, sources, format, shoal, ...rest } = config;
  return rest;
}

// Settings that are not the same in all: pairs of a name and its values.
export function differences(settings) {
  const names = [...new Set(settings.flatMap(Object.keys))];
  return names
    .map((name) => [name, settings.map((each) => each[name])])
    .filter(([, values]) => new Set(values.map((value) => JSON.stringify(value))).size > 1);
}
