// What costs many calls between WebAssembly and JavaScript when it is done member by member is done here in
// one. Nothing is decided.

// All fields as one text: a name and a value in turn, each ended by a line feed, which neither can contain.
export function flattened(headers) {
  let text = "";
  for (const [name, value] of headers) text += name + "\n" + value + "\n";
  return text;
}

// The other way round, with a status and a body that is there as a whole.
export function responded(status, fields, body, encoded) {
  const headers = [];
  const parts = fields.split("\n");
  for (let i = 0; i + 1 < parts.length; i += 2) headers.push([parts[i], parts[i + 1]]);
  // The bytes are the gate's memory: they are copied. Without any, nothing is said of their length.
  const init = { status, headers, encodeBody: encoded ? "manual" : "automatic" };
  return new Response(body.length === 0 ? null : body.slice(), init);
}
