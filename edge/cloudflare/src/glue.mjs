// What costs many calls between WebAssembly and JavaScript when it is done member by member is done here in
// one. Nothing is decided.

// All fields as one text: a name and a value in turn, each ended by a line feed, which neither can contain.
export function flattened(headers) {
  let text = "";
  headers.forEach((value, name) => {
    text += name + "\n" + value + "\n";
  });
  return text;
}

// A request's method and address, and then its fields.
export function described(request) {
  return request.method + "\n" + request.url + "\n" + flattened(request.headers);
}

// The other way round, with a status and a body that is there as a whole.
export function responded(status, fields, body, encoded) {
  // One by one is a sixth faster than a list of pairs, and one name may come twice.
  const headers = new Headers();
  const parts = fields.split("\n");
  for (let i = 0; i + 1 < parts.length; i += 2) headers.append(parts[i], parts[i + 1]);
  // The bytes are the gate's memory: they are copied. Without any, nothing is said of their length.
  const init = { status, headers, encodeBody: encoded ? "manual" : "automatic" };
  return new Response(body.length === 0 ? null : body.slice(), init);
}
