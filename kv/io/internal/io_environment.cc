#include "kv/io/internal/io_environment.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

namespace cairn::kv::internal {
namespace {

constexpr uint64_t kMinBlockBytes = 4096;
constexpr uint64_t kMaxThreads = 1024;

Error Unusable(const char* name, std::string_view value, std::string_view expected) {
  return {.code = ErrorCode::kInvalidArgument,
          .message = fmt::format("the environment variable {} is '{}'; it must be {}", name, value,
                                 expected)};
}

Result<void> ReadChoice(const char* name, std::string_view yes, std::string_view no, bool& target) {
  const std::string_view text = EnvironmentVariable(name);
  if (text.empty()) return {};
  if (text != yes && text != no) {
    return Fail(Unusable(name, text, fmt::format("{} or {}", yes, no)));
  }
  target = text == yes;
  return {};
}

}  // namespace

std::string_view EnvironmentVariable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : value;
}

Result<uint64_t> IntegerVariable(const char* name, uint64_t least, uint64_t most,
                                 uint64_t otherwise) {
  const std::string_view text = EnvironmentVariable(name);
  if (text.empty()) return otherwise;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    return Fail(Unusable(name, text, fmt::format("an integer from {} to {}", least, most)));
  }
  return value;
}

Result<IoOptions> IoOptionsFromEnvironment(IoOptions io) {
  CAIRN_TRY_ASSIGN(io.block_bytes, IntegerVariable("CAIRN_IO_BLOCK_BYTES", kMinBlockBytes,
                                                   kMaxBlockBytes, io.block_bytes));
  CAIRN_TRY_ASSIGN(const uint64_t depth,
                   IntegerVariable("CAIRN_IO_DEPTH", 1, kMaxQueueDepth, io.queue_depth));
  io.queue_depth = static_cast<uint32_t>(depth);
  CAIRN_TRY(ReadChoice("CAIRN_IO_ENGINE", "uring", "threads", io.uring));
  CAIRN_TRY(ReadChoice("CAIRN_IO_DIRECT", "1", "0", io.direct));
  CAIRN_TRY(WorkerThreadsFromEnvironment(1));
  return io;
}

Result<uint64_t> WorkerThreadsFromEnvironment(uint64_t otherwise) {
  return IntegerVariable("CAIRN_THREADS", 1, kMaxThreads, otherwise);
}

}  // namespace cairn::kv::internal
