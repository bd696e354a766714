#include "tests/core/history/model_state.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

namespace cairn::core {
namespace {

constexpr uint64_t kRowBytes = 512;

/// The number at `bytes`, of two bytes as in bfloat16 or of four.
float LoadFloat(const std::byte* bytes, uint64_t width) {
  uint32_t bits = 0;
  std::memcpy(reinterpret_cast<std::byte*>(&bits) + 4 - width, bytes, width);
  return std::bit_cast<float>(bits);
}

/// Rounds to bfloat16 by comparing with its two neighbors.
uint32_t RoundToBFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t below = bits >> 16, rest = bits & 0xffff;  // towards zero
  const bool is_up = rest > 0x8000 || (rest == 0x8000 && below % 2 == 1);
  return is_up ? below + 1 : below;
}

void StoreFloat(float value, std::byte* bytes, uint64_t width) {
  auto bits =
      std::bit_cast<uint32_t>(std::isnan(value) ? std::bit_cast<float>(0x7fc00000u) : value);
  if (width == 2) bits = (std::isnan(value) ? 0x7fc0u : RoundToBFloat16(value));
  std::memcpy(bytes, &bits, width);
}

std::vector<std::byte> MeanOfFloats(const std::vector<const std::vector<std::byte>*>& arrays,
                                    const std::vector<double>& weights, uint64_t width) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::byte> mean = *arrays[0];
  for (size_t at = 0; at < mean.size(); at += width) {
    bool is_same = true;
    volatile float sum = 0;  // each operation rounds
    for (size_t i = 0; i < arrays.size(); ++i) {
      const auto weight = static_cast<float>(weights[i] / total);
      const volatile float product = weight * LoadFloat(&(*arrays[i])[at], width);
      sum = i == 0 ? product : sum + product;
      is_same &= std::memcmp(&(*arrays[i])[at], &(*arrays[0])[at], width) == 0;
    }
    if (!is_same) StoreFloat(sum, &mean[at], width);
  }
  return mean;
}

}  // namespace

bool CanBeMerged(const ModelStep& a, const ModelStep& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.dtype == y.second.dtype &&
           x.second.shape == y.second.shape;
  });
}

ModelStep MeanOf(const std::vector<ModelStep>& steps, const std::vector<double>& weights) {
  ModelStep mean = steps.back();
  for (auto& [fqn, tensor] : mean) {
    if (tensor.dtype != DType::kBFloat16 && tensor.dtype != DType::kFloat32) continue;
    std::vector<const std::vector<std::byte>*> arrays;
    for (const ModelStep& step : steps) arrays.push_back(step.at(fqn).bytes.get());
    tensor.bytes = std::make_shared<const std::vector<std::byte>>(
        MeanOfFloats(arrays, weights, schema::ElementBytes(tensor.dtype)));
  }
  return mean;
}

ModelState::ModelState(testing::SeededRandom& random) : random_(random) {
  Add("weights", DType::kBFloat16, {250, 900});
  Add("moments", DType::kFloat32, {100, 300});
  Add("embedding", DType::kUInt8, {600, kRowBytes});
  Add("frozen", DType::kUInt8, {200'000});
  Add("step", DType::kInt64, {});
}

void ModelState::Add(const std::string& fqn, DType dtype, Shape shape) {
  uint64_t elements = 1;
  for (const uint64_t size : shape) elements *= size;
  std::vector<std::byte> bytes(elements * schema::ElementBytes(dtype));
  random_.Fill(bytes);
  if (dtype == DType::kBFloat16) {  // a short range of exponents, so that it can be compressed
    for (uint64_t i = 1; i < bytes.size(); i += 2) {
      bytes[i] = (bytes[i] & std::byte{0x81}) | std::byte{0x3c};
    }
  }
  tensors_[fqn] = {.dtype = dtype, .shape = std::move(shape), .bytes = nullptr};
  Put(fqn, std::move(bytes));
}

std::vector<std::byte> ModelState::CopyOf(const std::string& fqn) const {
  return *tensors_.at(fqn).bytes;
}

void ModelState::Put(const std::string& fqn, std::vector<std::byte> bytes) {
  tensors_.at(fqn).bytes = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
}

void ModelState::ChangeElements(const std::string& fqn, double share) {
  std::vector<std::byte> bytes = CopyOf(fqn);
  const uint64_t width = schema::ElementBytes(tensors_.at(fqn).dtype);
  const auto distance = static_cast<uint64_t>(1 / share);
  for (uint64_t at = random_.Between(0, distance); at < bytes.size() / width;
       at += random_.Between(1, 2 * distance)) {
    bytes[width * at] ^= std::byte{1};
  }
  Put(fqn, std::move(bytes));
}

void ModelState::ChangeRows(const std::string& fqn) {
  std::vector<std::byte> bytes = CopyOf(fqn);
  for (uint64_t rows = random_.Between(1, 6); rows > 0; --rows) {
    const uint64_t row = random_.Between(0, bytes.size() / kRowBytes - 1);
    random_.Fill(std::span(bytes).subspan(row * kRowBytes, kRowBytes));
  }
  Put(fqn, std::move(bytes));
}

void ModelState::AddOrRemove() {
  const auto extra = tensors_.lower_bound("extra");
  const bool has_extra = extra != tensors_.end() && extra->first.starts_with("extra");
  if (has_extra && random_.Chance(0.6)) {
    tensors_.erase(extra);
  } else {
    Add("extra" + std::to_string(next_extra_++), DType::kUInt8, {random_.Between(0, 80'000)});
  }
}

void ModelState::Change() {
  if (!tensors_.contains("weights") || !tensors_.contains("embedding") ||
      !tensors_.contains("moments")) {
    AddOrRemove();  // of a step that was edited
    return;
  }
  if (random_.Chance(0.7)) ChangeElements("weights", random_.Chance(0.5) ? 0.01 : 0.08);
  if (random_.Chance(0.2)) ChangeElements("moments", 1);
  if (random_.Chance(0.4)) ChangeRows("embedding");
  if (random_.Chance(0.05)) AddOrRemove();
  if (random_.Chance(0.05)) {  // equal bytes in other memory
    tensors_["ema"] = tensors_.at("weights");
    Put("ema", CopyOf("weights"));
  }
  if (random_.Chance(0.01)) Add("weights", DType::kBFloat16, {250, random_.Between(1, 1200)});
}

StateDict ModelState::View() const {
  StateDict state;
  for (const auto& [fqn, tensor] : tensors_) {
    state.root().Tensor(fqn, {.dtype = tensor.dtype,
                              .shape = tensor.shape,
                              .strides = {},
                              .data = tensor.bytes->data()});
  }
  return state;
}

}  // namespace cairn::core
