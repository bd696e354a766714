#pragma once
/// Random numbers for property tests. Every failure prints the seed, and CAIRN_TEST_SEED sets it.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace cairn::testing {

class SeededRandom {
 public:
  SeededRandom() : SeededRandom(ChooseSeed()) {}
  /// With a given seed, for values that must be the same in several processes.
  explicit SeededRandom(uint64_t seed)
      : seed_(seed), engine_(seed_), trace_(__FILE__, __LINE__, Hint()) {}

  uint64_t seed() const { return seed_; }
  /// Uniform in [low, high].
  uint64_t Between(uint64_t low, uint64_t high) {
    return std::uniform_int_distribution<uint64_t>(low, high)(engine_);
  }
  bool Chance(double probability) { return std::bernoulli_distribution(probability)(engine_); }
  void Fill(std::span<std::byte> bytes) {
    for (std::byte& b : bytes) b = static_cast<std::byte>(engine_());
  }
  std::vector<std::byte> Bytes(uint64_t length_bytes) {
    std::vector<std::byte> bytes(length_bytes);
    Fill(bytes);
    return bytes;
  }

 private:
  static uint64_t ChooseSeed() {
    const char* given = std::getenv("CAIRN_TEST_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  }
  std::string Hint() const { return "CAIRN_TEST_SEED=" + std::to_string(seed_); }

  uint64_t seed_;
  std::mt19937_64 engine_;
  ::testing::ScopedTrace trace_;
};

}  // namespace cairn::testing
