// classify MODEL.onnx IMAGE.ppm    (convert photo.jpg image.ppm makes one: bytes, red first)
// g++ -std=c++17 classify.cpp -I onnxruntime/include -L onnxruntime/lib -lonnxruntime -o classify

#include <cstdint>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>
#include "onnxruntime_cxx_api.h"

int main(int, char** argv) {
  std::ifstream file(argv[2], std::ios::binary);
  std::string kind;
  int64_t width, height, most;
  file >> kind >> width >> height >> most;  // P6, then three numbers
  std::vector<uint8_t> pixels(width * height * 3);
  file.ignore(1).read(reinterpret_cast<char*>(pixels.data()), pixels.size());

  Ort::Env env;
  Ort::Session session(env, argv[1], Ort::SessionOptions());
  auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  std::vector<int64_t> shape{1, height, width, 3};
  auto image = Ort::Value::CreateTensor<uint8_t>(
      memory, pixels.data(), pixels.size(), shape.data(), shape.size());
  const char* inputs[] = {"images"};
  const char* outputs[] = {"label", "probabilities"};
  auto found = session.Run(Ort::RunOptions(), inputs, &image, 1, outputs, 2);

  std::cout << found[0].GetStringTensorElement(0);
  auto count = found[1].GetTensorTypeAndShapeInfo().GetElementCount();
  for (size_t i = 0; i < count; i++) std::cout << " " << found[1].GetTensorData<float>()[i];
  std::cout << std::endl;
}
