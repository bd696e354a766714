// Creates the golden stores of this build's format version: make_golden DIR creates DIR, and
// DIR-pages with chunks in several extents. It is run once per format version; the result is added
// to git and never created again.

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <filesystem>

#include "kv/options.h"
#include "kv/store.h"
#include "tests/golden/golden_contents.h"

namespace cairn::kv::testing {
namespace {

// RocksDB's file of options is large, and no open reads it.
void RemoveOptions(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory + "/index")) {
    if (entry.path().filename().string().starts_with("OPTIONS-")) std::filesystem::remove(entry);
  }
}

Result<void> MakeGolden(const std::string& directory) {
  {
    CAIRN_TRY_ASSIGN(const auto store, Store::Open(directory, OpenMode::kWrite));
    for (const auto& [step, version] : {std::pair{10, 0}, {15, 0}, {20, 0}, {20, 1}}) {
      CAIRN_TRY(SaveSample(*store, GoldenStep(step, version), /*overwrite=*/version > 0));
    }
    CAIRN_TRY(store->Delete(std::array<uint64_t, 1>{15}));
    CAIRN_TRY(store->Close());
  }
  CAIRN_TRY_ASSIGN(const auto store, Store::Open(directory, OpenMode::kWrite));
  CAIRN_TRY(SaveSample(*store, GoldenStep(30, 0)));
  CAIRN_TRY(store->Close());
  RemoveOptions(directory);
  return {};
}

// Step 1 is deleted. Its segment remains, because later steps use some of its pages.
Result<void> MakeGoldenPages(const std::string& directory) {
  {
    CAIRN_TRY_ASSIGN(const auto store, Store::Open(directory, OpenMode::kWrite));
    for (const uint64_t step : {1, 2, 3}) CAIRN_TRY(SaveSample(*store, PagesGoldenStep(step)));
    CAIRN_TRY(store->Delete(std::array<uint64_t, 1>{1}));
    CAIRN_TRY(store->Close());
  }
  RemoveOptions(directory);
  return {};
}

}  // namespace
}  // namespace cairn::kv::testing

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_golden DIR\n");
    return 2;
  }
  const std::string directory = argv[1];
  auto made = cairn::kv::testing::MakeGolden(directory);
  if (made) made = cairn::kv::testing::MakeGoldenPages(directory + "-pages");
  if (!made) {
    std::fprintf(stderr, "make_golden: %s\n", made.error().ToString().c_str());
    return 2;
  }
  return 0;
}
