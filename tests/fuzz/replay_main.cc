// Calls a fuzzer in builds without libFuzzer: once with each file of its corpus, and then with
// random mutations of them.
//
//   fuzz_NAME [--rounds N] [--seed N] PATH...    PATH is a file or a folder of files
//
// If the fuzzer ends the process, its input is written to fuzz-failure.bin in the current folder,
// and the command that repeats it is printed. CAIRN_TEST_SEED sets the seed, too.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string_view>
#include <vector>

#include "tests/fuzz/fuzz_support.h"

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;

constexpr uint64_t kDefaultRounds = 10'000;
constexpr uint64_t kDefaultSeed = 1;
constexpr size_t kMaxInputBytes = 64 << 10;
constexpr char kFailurePath[] = "fuzz-failure.bin";

const Bytes* current = nullptr;  // what the fuzzer runs with

/// Only makes calls that are allowed in a signal handler.
void WriteFailure(int signal) {
  std::signal(signal, SIG_DFL);
  if (current != nullptr) {
    const int file = ::open(kFailurePath, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    ssize_t written = file < 0 ? -1 : ::write(file, current->data(), current->size());
    constexpr std::string_view kText =
        "The input is in fuzz-failure.bin; to repeat it, run this program with --rounds 0 and the "
        "file.\n";
    if (written >= 0) written = ::write(STDERR_FILENO, kText.data(), kText.size());
    (void)written;  // the process ends in any case
  }
  std::raise(signal);
}

void Run(const Bytes& input) {
  current = &input;
  LLVMFuzzerTestOneInput(input.data(), input.size());
  current = nullptr;
}

Bytes ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    std::exit(2);
  }
  return Bytes(std::istreambuf_iterator<char>(file), {});
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}

  Bytes Mutate(const std::vector<Bytes>& corpus) {
    Bytes input = corpus[Below(corpus.size())];
    for (uint64_t i = 0, count = 1 + Below(4); i < count; ++i) Change(input, corpus);
    if (input.size() > kMaxInputBytes) input.resize(kMaxInputBytes);
    return input;
  }

 private:
  uint64_t Below(uint64_t end) { return random_() % end; }
  size_t Position(const Bytes& input) { return Below(input.size() + 1); }

  void Change(Bytes& input, const std::vector<Bytes>& corpus) {
    constexpr uint8_t kSpecial[] = {0, 1, 2, 0x7f, 0x80, 0xff, '"', '<', '/', ':', '\n'};
    const size_t at = Position(input);
    const auto here = input.begin() + static_cast<ptrdiff_t>(at);
    switch (Below(7)) {
      case 0:
        if (at < input.size()) input[at] ^= static_cast<uint8_t>(1u << Below(8));
        return;
      case 1:
        if (at < input.size()) input[at] = kSpecial[Below(std::size(kSpecial))];
        return;
      case 2:
        input.insert(here, static_cast<uint8_t>(random_()));
        return;
      case 3:
        input.erase(here, here + static_cast<ptrdiff_t>(Below(input.size() - at + 1)));
        return;
      case 4: {  // repeats some bytes
        const Bytes repeated(here, here + static_cast<ptrdiff_t>(Below(input.size() - at + 1)));
        input.insert(here, repeated.begin(), repeated.end());
        return;
      }
      case 5: {  // a number at any place
        const uint64_t number = Below(2) == 0 ? Below(256) : ~uint64_t{0} >> Below(64);
        for (size_t i = 0; i < 4 && at + i < input.size(); ++i) {
          input[at + i] = static_cast<uint8_t>(number >> (8 * i));
        }
        return;
      }
      default: {  // the end of another input
        const Bytes& other = corpus[Below(corpus.size())];
        const size_t from = Position(other);
        input.resize(at);
        input.insert(input.end(), other.begin() + static_cast<ptrdiff_t>(from), other.end());
      }
    }
  }

  std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
  uint64_t rounds = kDefaultRounds;
  const char* const given = std::getenv("CAIRN_TEST_SEED");
  uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : kDefaultSeed;
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--rounds" && i + 1 < argc) {
      rounds = std::strtoull(argv[++i], nullptr, 10);
    } else if (argument == "--seed" && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (fs::is_directory(argument)) {
      for (const auto& entry : fs::directory_iterator(argument)) files.push_back(entry.path());
    } else {
      files.emplace_back(argument);
    }
  }
  if (files.empty()) {
    std::fprintf(stderr, "there are no inputs; name the folder of the corpus\n");
    return 2;
  }
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    std::signal(signal, &WriteFailure);
  }
  std::ranges::sort(files);  // the order of a folder differs between machines
  std::vector<Bytes> corpus;
  for (const fs::path& path : files) {
    corpus.push_back(ReadFile(path));
    Run(corpus.back());
  }
  Mutator mutator(seed);
  for (uint64_t i = 0; i < rounds; ++i) Run(mutator.Mutate(corpus));
  std::printf("%zu inputs and %llu mutations of them (seed %llu)\n", corpus.size(),
              static_cast<unsigned long long>(rounds), static_cast<unsigned long long>(seed));
  return 0;
}
