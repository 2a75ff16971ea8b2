// The likeliest class of an image {width, height, data}, data with four bytes a pixel: what the
// canvas of a browser gives, and what decoders for node give.

export async function classify(ort, session, { width, height, data }) {
  const rgb = new Uint8Array(3 * width * height);
  for (let i = 0; i < width * height; i++) rgb.set(data.subarray(4 * i, 4 * i + 3), 3 * i);
  const images = new ort.Tensor("uint8", rgb, [1, height, width, 3]);
  const { label, probabilities } = await session.run({ images });
  return { label: label.data[0], probabilities: [...probabilities.data] };
}
