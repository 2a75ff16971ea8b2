// Photographs from the camera, where the browser has one and lets this page use it.

import { FileImage } from "./images.js";

export class Camera {
  /** @param page elements by id
   *  @param problem called with the reason why there is none */
  constructor(page, problem) {
    this.page = page;
    this.problem = problem;
    this.stream = null;
    page.take.addEventListener("click", () => this.#take());
    page["close-camera"].addEventListener("click", () => page.camera.close());
    // Also by Escape: the light of the camera goes out with the dialog.
    page.camera.addEventListener("close", () => this.#stop());
  }

  /** Browsers hide the camera from pages of other machines that come without TLS. */
  get there() { return Boolean(navigator.mediaDevices?.getUserMedia); }

  /** @param took called with each photograph; says whether there may be another */
  async open(title, took) {
    const { video } = this.page;
    this.took = took;
    this.page["camera-title"].textContent = title;
    this.page.camera.showModal();
    try {
      const wish = { video: { facingMode: "environment" }, audio: false };
      const stream = await navigator.mediaDevices.getUserMedia(wish);
      this.stream = stream;
      if (!this.page.camera.open) this.#stop(); // closed while the browser asked
      else {
        video.srcObject = stream;
        await video.play();
      }
    } catch (error) {
      this.page.camera.close();
      this.problem(`There is no photograph: ${error.message}.`);
    }
  }

  #take() {
    const { video } = this.page;
    if (!video.videoWidth) return; // the first frame is still to come
    const frame = document.createElement("canvas");
    frame.width = video.videoWidth;
    frame.height = video.videoHeight;
    frame.getContext("2d").drawImage(video, 0, 0);
    if (!this.took(FileImage.of(frame))) this.page.camera.close();
  }

  #stop() {
    for (const track of this.stream?.getTracks() ?? []) track.stop();
    this.page.video.srcObject = this.stream = null;
  }
}
