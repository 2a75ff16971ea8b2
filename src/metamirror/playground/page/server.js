// Questions to the server this page came from.

const MOST_TRIES = 6;

/** The answer, or an Error with the server's reason. */
async function ask(path, body, signal) {
  const how = body === undefined ? {} : {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  };
  for (let attempt = 1; ; attempt++) {
    let response;
    try {
      response = await fetch(path, how);
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Error("The server does not answer. Is it still running?");
    }
    if (response.status === 503 && attempt < MOST_TRIES) {
      const seconds = Number(response.headers.get("retry-after")) || 1;
      await new Promise((done) => setTimeout(done, 1000 * seconds * (0.5 + Math.random())));
      continue;
    }
    const answer = await response.json().catch(() => ({}));
    if (!response.ok) {
      const reason = answer.error ?? `the server answered ${response.status}`;
      throw new Error(reason[0].toUpperCase() + reason.slice(1));
    }
    return answer;
  }
}

export const server = {
  starts: () => ask("api/starts"),
  sample: (number) => ask(`api/samples/${number}`),
  adapt: (request, signal) => ask("api/adapt", request, signal),
  predict: (model, image) => ask(`api/models/${model}/predict`, { image }),
  without: (model, example, image, signal) =>
    ask(`api/models/${model}/without`, { example, image }, signal),
  file: (model, kind) => `api/models/${model}/${kind}`,
};
