// Creates the first inputs of the fuzzers from the golden stores, and from messages that the
// encoders wrote. Inputs that do not depend on the format of stores are only in the corpora:
// addresses, documents of servers, headers of safetensors files, bytes to compress.
//
//   cairn_make_fuzz_corpus DIR STORE...     creates DIR/<fuzzer>/<name>
//
// An input begins with the byte that selects the decoder (fuzz_support.h). The names of unchanged
// inputs are the same when it runs again, for example with a further golden store.
// `tools/fuzz.sh --merge` adds what the fuzzers find.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "core/ranks/internal/rendezvous.h"
#include "core/state_dict/value.h"
#include "kv/commit/internal/part_file.h"
#include "kv/root/internal/framed_record.h"
#include "kv/root/internal/kv_records.h"
#include "kv/root/internal/lease.h"
#include "kv/root/internal/root_search.h"
#include "kv/segment/internal/segment_format.h"
#include "kv/state/internal/attempt_outcome.h"
#include "kv/storage/files/internal/memory_storage.h"
#include "kv/storage/open/open_storage.h"
#include "kv/table/internal/table_reader.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::fuzz {
namespace {

namespace fs = std::filesystem;
using namespace kv::internal;  // NOLINT(google-build-using-namespace): the code under test
using Bytes = std::vector<std::byte>;

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Ends the program with the error.
template <typename T>
T Must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "make_corpus: %s\n", result.error().ToString().c_str());
    std::exit(2);
  }
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

/// Concatenates the parts of an input.
class Builder {
 public:
  Builder() = default;
  explicit Builder(uint8_t selector) { Byte(selector); }
  Builder& Byte(uint8_t value) {
    text_.push_back(static_cast<char>(value));
    return *this;
  }
  template <typename T>
  Builder& Number(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) Byte(static_cast<uint8_t>(value >> (8 * i)));
    return *this;
  }
  Builder& Add(std::span<const std::byte> bytes) {
    text_ += AsText(bytes);
    return *this;
  }
  Builder& Add(std::string_view text) {
    text_ += text;
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class Corpus {
 public:
  explicit Corpus(fs::path folder) : folder_(std::move(folder)) {}
  /// Adds an input, unless the fuzzer has it. Of equal names, the first `kMaxPerName` are kept.
  void Add(const std::string& fuzzer, const std::string& name, const Builder& input) {
    constexpr int kMaxPerName = 3;
    if (!known_[fuzzer].insert(input.text()).second) return;
    const int number = count_[fuzzer + "/" + name]++;
    if (number >= kMaxPerName) return;
    fs::create_directories(folder_ / fuzzer);
    std::ofstream file(
        folder_ / fuzzer / (number == 0 ? name : name + "-" + std::to_string(number + 1)),
        std::ios::binary);
    file << input.text();
    if (!file.flush()) {
      std::fprintf(stderr, "make_corpus: cannot write to %s\n", folder_.c_str());
      std::exit(2);
    }
  }

 private:
  const fs::path folder_;
  std::map<std::string, int> count_;
  std::map<std::string, std::set<std::string>> known_;
};

constexpr char kAttempt[] = "00000001123456780000000000000000-7-0";
constexpr char kPart[] = "pending/00000001123456780000000000000000-7-0/1.part";
const PartHeader kPartHeader{.step = 7, .rank = 1, .world_size = 2, .attempt = kAttempt};

/// What the inputs that are made of one store share.
struct StoreContents {
  std::map<uint64_t, Bytes> segments;    // by id
  std::map<std::string, Bytes> tensors;  // records by FQN
};

/// Adds the record of a chunk, and its deltas.
void AddChunk(Corpus& corpus, std::string_view key, std::span<const std::byte> record,
              StoreContents& contents) {
  const kv::ChunkEntry entry = Must(DecodeChunk(record));
  const kv::Extents& payload = entry.extents.payload;
  const std::string name = fmt::format("chunk{}{}{}", entry.extents.deltas.empty() ? "" : "_deltas",
                                       entry.extents.is_compressed() ? "_compressed" : "",
                                       payload.size() > 1 ? "_extents" : "");
  corpus.Add("records", name, Builder(2).Add(record));
  const auto key_bytes = static_cast<uint8_t>(key.size());
  corpus.Add("records", "chunk_with_key", Builder(3).Byte(key_bytes).Add(key).Add(record));
  corpus.Add("records", "key", Builder(6).Add(key));
  const Bytes& tensor = contents.tensors[std::string(key.substr(0, key.find('\0')))];
  corpus.Add("tensors", "chunk_of_tensor",
             Builder(1)
                 .Byte(static_cast<uint8_t>(tensor.size()))
                 .Add(tensor)
                 .Byte(key_bytes)
                 .Add(key)
                 .Add(record));
  for (const kv::Extent& delta : entry.extents.deltas) {
    corpus.Add("deltas", name,
               Builder(0)
                   .Number(static_cast<uint32_t>(payload.length_bytes()))
                   .Add(std::span(contents.segments[delta.segment_id])
                            .subspan(delta.offset_bytes, delta.length_bytes)));
  }
}

void AddRecord(Corpus& corpus, std::string_view key, std::span<const std::byte> value,
               StoreContents& contents) {
  const std::string_view in_column = key.substr(1);
  switch (static_cast<kv::Column>(key[0])) {
    case kv::Column::kSteps:
      return corpus.Add("records", "step", Builder(0).Add(value));
    case kv::Column::kSegments:
      return corpus.Add("records", "segment", Builder(1).Add(value));
    case kv::Column::kUsage:
      return corpus.Add("records", "usage", Builder(4).Add(in_column).Add(value));
    case kv::Column::kTables:
      return corpus.Add("records", "tables", Builder(5).Add(value));
    case kv::Column::kTensors:
      contents.tensors[std::string(in_column.substr(0, in_column.size() - 1))] = {value.begin(),
                                                                                  value.end()};
      return corpus.Add("tensors", "tensor", Builder(0).Add(value));
    case kv::Column::kChunks:
      return AddChunk(corpus, in_column, value, contents);
    case kv::Column::kValues: {
      const size_t kind = Must(core::DecodeValue(value)).index();
      return corpus.Add("tensors", fmt::format("value_{}", kind), Builder(4).Add(value));
    }
    case kv::Column::kApplication:
      return corpus.Add("tensors", "application", Builder(4).Add(value));
    case kv::Column::kStructures:
      corpus.Add("tensors", "tree", Builder(2).Number(~uint64_t{2}).Add(value));
      return corpus.Add("tensors", "extension", Builder(3).Byte(1).Add("x").Add(value));
  }
}

void AddTable(Corpus& corpus, const std::shared_ptr<kv::Storage>& storage, const std::string& name,
              StoreContents& contents, PartWriter& part) {
  const Bytes object = Must(storage->Read(name, 1 << 20));
  const TableInfo info{.id = ParseObjectName(name)->id, .file_bytes = object.size()};
  const auto table = Must(TableReader::Open(storage, info));
  const auto iterator = table->NewIterator(TableAccess::kLookup);
  uint8_t count = 0;
  for (Must(iterator->Seek("")); iterator->Valid(); Must(iterator->Next())) {
    ++count;
    if (iterator->value().empty()) continue;
    AddRecord(corpus, iterator->key(), iterator->value(), contents);
    const auto column = static_cast<kv::Column>(iterator->key()[0]);
    if (column == kv::Column::kChunks || column == kv::Column::kSteps) {
      Must(part.Add({.key = iterator->key(), .value = iterator->value()}));
    }
  }
  corpus.Add("tables", "table", Builder(count).Add(object));
}

void AddSegment(Corpus& corpus, std::span<const std::byte> object) {
  const auto header_bytes = object.first<kSegmentHeaderBytes>();
  const auto trailer_bytes = object.last<kSegmentTrailerBytes>();
  const SegmentHeader header = Must(DecodeSegmentHeader(header_bytes));
  const SegmentTrailer trailer = Must(DecodeSegmentTrailer(trailer_bytes, object.size()));
  const auto footer = object.subspan(trailer.footer_offset_bytes(), trailer.footer_bytes);
  corpus.Add("segments", "header_short", Builder(0).Byte(1).Add(header_bytes.first(64)));
  if (header.step == 1) corpus.Add("segments", "header", Builder(0).Byte(0).Add(header_bytes));
  const auto more_bytes =
      static_cast<uint32_t>(object.size() - kSegmentHeaderBytes - kSegmentTrailerBytes);
  corpus.Add("segments", "trailer", Builder(1).Byte(0).Number(more_bytes).Add(trailer_bytes));
  corpus.Add("segments", "trailer_repaired",
             Builder(1).Byte(1).Number(more_bytes).Add(trailer_bytes));
  corpus.Add("segments", "footer", Builder(2).Number(header.segment_id).Add(footer));
  const auto payload_bytes = static_cast<uint16_t>(trailer.payload_end_bytes - kSegmentHeaderBytes);
  corpus.Add("segments", "segment",
             Builder(3)
                 .Number(header.segment_id)
                 .Number(payload_bytes)
                 .Byte(static_cast<uint8_t>(trailer.page_digest_count))
                 .Add(footer));
}

void AddRoot(Corpus& corpus, std::span<const std::byte> object) {
  corpus.Add("roots", "root_object", Builder(0).Add(object));
  corpus.Add("roots", "root_repaired", Builder(1).Add(object));
  corpus.Add("roots", "root_record",
             Builder(2).Add(Must(UnframeRecord({.magic = "CNRT", .name = "root"}, object))));
  const Root root = Must(DecodeRoot(object));
  if (root.recent.empty()) return;
  Root newer = root;
  newer.features.write = {"a-feature", "another"};
  const Bytes newer_object = Must(EncodeRoot(newer));
  corpus.Add("roots", "root_features",
             Builder(2).Add(Must(UnframeRecord({.magic = "CNRT", .name = "root"}, newer_object))));
  const Bytes page = Must(EncodePage(root.recent));
  corpus.Add("roots", "page_object", Builder(3).Add(page));
  corpus.Add("roots", "page_repaired", Builder(4).Add(page));
  corpus.Add("roots", "page_record",
             Builder(5).Add(Must(UnframeRecord({.magic = "CNPG", .name = "page"}, page))));
}

void AddStore(Corpus& corpus, const std::shared_ptr<kv::Storage>& storage) {
  StoreContents contents;
  const auto parts = std::make_shared<MemoryStorage>("parts");
  PartWriter part(parts, kPart, kPartHeader);
  std::vector<std::string> names = Must(storage->List(""));
  std::ranges::sort(names);  // segments before tables
  for (const std::string& name : names) {
    const Bytes object = Must(storage->Read(name, 1 << 20));
    corpus.Add("records", "name", Builder(7).Add(name));
    if (name.starts_with("roots/")) AddRoot(corpus, object);
    if (name.starts_with("segments/")) {
      AddSegment(corpus, object);
      contents.segments[ParseObjectName(name)->id.id] = object;
    }
    if (name.starts_with("tables/")) AddTable(corpus, storage, name, contents, part);
    if (name == kIdentityName) {
      const auto text = AsText(object);
      corpus.Add("messages", "identity", Builder(3).Add(text.substr(0, text.find("checksum"))));
    }
  }
  Must(part.Finish());
  const Bytes object = Must(FetchPart(*parts, kPart));
  const Bytes words = Must(UnframeRecord(kPartFrame, object));
  const auto records = std::span(words).subspan(kPartHeaderWords * sizeof(uint64_t));
  corpus.Add("parts", "part", Builder(0).Add(object));
  corpus.Add("parts", "part_repaired", Builder(1).Add(object));
  corpus.Add("parts", "entries", Builder(2).Add(records));
}

void AddMessages(Corpus& corpus) {
  MemoryStorage storage("messages");
  const auto add = [&](const char* name, const char* object) {
    const auto path = std::string(kPendingFolder) + kAttempt + "/" + object;
    corpus.Add("messages", name, Builder(2).Add(Must(storage.Read(path, 1 << 20))));
    Must(storage.Remove(path));
  };
  Must(PublishCommitted(storage, kAttempt, 17));
  add("outcome_committed", "outcome");
  const Error error{.code = ErrorCode::kUnavailable,
                    .message = "no",
                    .key = "w",
                    .file = "f",
                    .step = 7,
                    .offset_bytes = 4096};
  Must(PublishFailure(storage, kAttempt, 0, error, true));
  add("outcome_failed", "outcome");
  Must(PublishFailure(storage, kAttempt, 1, error, false));
  add("failure", "failed");
  const Lease lease{.writer = {.host = "n1", .pid = 17, .session = "0000000112345678"},
                    .epoch = 1,
                    .boot_id = "b",
                    .pid_namespace = "pid:[4026531836]",
                    .process_start = 12,
                    .renewed_unix_ns = 1'769'860'800'000'000'000};
  corpus.Add("messages", "lease", Builder(0).Add(EncodeLease(lease)));
  WriteHint(storage, {}, 2);
  corpus.Add("messages", "hint", Builder(1).Add(Must(storage.Read(kHintName, 100))));
  const SegmentUse use{.segment = {.epoch = 1, .id = 7, .id_tail = 9}, .live_bytes = 4096};
  corpus.Add("records", "usage", Builder(4).Add(kv::NumberKey(7)).Add(EncodeUsage(use)));
  const std::vector<std::byte> record =
      core::internal::EncodeRecord({.rank = 1, .world_size = 2, .message = "10.0.0.1:29400"});
  corpus.Add("messages", "rendezvous", Builder(4).Add(std::span(record).first(record.size() - 8)));
  corpus.Add("messages", "status", Builder(5).Number(uint64_t{1}).Number(uint64_t{0}));
  corpus.Add("messages", "layout_same", Builder(6).Number(uint64_t{0}));
  Builder other(6);
  for (int i = 0; i < 2; ++i) other.Number(uint64_t{0});  // what precedes the header
  corpus.Add("messages", "layout_other", other.Number(uint64_t{1}).Number(uint64_t{1}));
}

}  // namespace

}  // namespace cairn::fuzz

int main(int argc, char** argv) {
  using namespace cairn::fuzz;  // NOLINT(google-build-using-namespace)
  if (argc < 3) {
    std::fprintf(stderr, "usage: cairn_make_fuzz_corpus DIR STORE...\n");
    return 2;
  }
  Corpus corpus(argv[1]);
  for (int i = 2; i < argc; ++i) AddStore(corpus, Must(cairn::kv::OpenStorage(argv[i])));
  AddMessages(corpus);
  return 0;
}
