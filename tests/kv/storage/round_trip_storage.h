#pragma once
/// A storage that is as far away as a server, for tests that count sequential round trips.

#include <fmt/format.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kv/base/mutex.h"
#include "kv/storage/internal/transfer_queues.h"
#include "tests/support/forwarding_storage.h"

namespace cairn::kv::testing {

/// Forwards to `base`. With latency, each call takes until all other threads of the process wait,
/// except appends to an ObjectWriter, which make no request. Threads that make calls at once
/// therefore do so together, on a machine of any speed. Queues have all requests in flight at once.
/// Listings are current.
///
/// The depth of a call is 1 more than the greatest depth of the calls that had completed before it
/// began. LongestChain is thus the number of sequential round trips.
///
/// Ownership: shares `base` with the test. Threads: all members may run on many threads at once.
class RoundTripStorage final : public cairn::testing::ForwardingStorage {
 public:
  using ForwardingStorage::ForwardingStorage;

  /// Whether calls have latency: not at first.
  void SetLatency(bool has_latency) {
    const MutexLock lock(mutex_);
    has_latency_ = has_latency;
  }

  // Since the last restart; of calls that have completed.
  uint64_t LongestChain() const {
    const MutexLock lock(mutex_);
    return completed_depth_;
  }
  /// Returns "<depth> <operation> <name>" of each call, in the order of completion.
  std::vector<std::string> Calls() const {
    const MutexLock lock(mutex_);
    return calls_;
  }
  /// Counts from 0 again. Ignores the calls that are running.
  void Restart() {
    const MutexLock lock(mutex_);
    ++restarts_;
    completed_depth_ = 0;
    calls_.clear();
  }
  /// Restarts whenever an object is put whose name ends with `suffix`.
  void RestartAfterPutOf(std::string suffix) {
    const MutexLock lock(mutex_);
    restart_suffix_ = std::move(suffix);
  }

  Result<void> Put(std::string_view name, std::span<const std::byte> bytes) override {
    return Call("Put", name, [&] { return base_->Put(name, bytes); });
  }
  Result<void> PutIfAbsent(std::string_view name, std::span<const std::byte> bytes) override {
    return Call("PutIfAbsent", name, [&] { return base_->PutIfAbsent(name, bytes); });
  }
  Result<std::unique_ptr<ObjectWriter>> Create(std::string_view name) override {
    CAIRN_TRY_ASSIGN(auto base, base_->Create(name));
    return std::make_unique<Writer>(*this, name, std::move(base));
  }
  Result<void> ReadRange(std::string_view name, uint64_t offset_bytes,
                         std::span<std::byte> target) override {
    return Call("ReadRange", name, [&] { return base_->ReadRange(name, offset_bytes, target); });
  }
  Result<std::vector<std::byte>> Read(std::string_view name, uint64_t limit_bytes) override {
    return Call("Read", name, [&] { return base_->Read(name, limit_bytes); });
  }
  Result<uint64_t> Size(std::string_view name) override {
    return Call("Size", name, [&] { return base_->Size(name); });
  }
  Result<std::vector<std::string>> List(std::string_view prefix) override {
    return Call("List", prefix, [&] { return base_->List(prefix); });
  }
  Result<void> Remove(std::string_view name) override {
    return Call("Remove", name, [&] { return base_->Remove(name); });
  }
  TransferSizes transfer_sizes() const override { return {.small_requests = 8}; }
  bool listings_are_current() const override { return true; }
  Result<std::unique_ptr<IoQueue>> MakeQueue(uint32_t depth) override {
    return std::make_unique<Queue>(*this, depth);
  }
  Result<std::unique_ptr<Upload>> BeginUpload(std::string_view name, uint64_t) override {
    return Call("BeginUpload", name, [&]() -> Result<std::unique_ptr<Upload>> {
      return std::make_unique<Parts>(*this, name);
    });
  }

 private:
  /// Collects the pieces, and puts the object in Finish.
  class Writer final : public ObjectWriter {
   public:
    Writer(RoundTripStorage& storage, std::string_view name, std::unique_ptr<ObjectWriter> base)
        : storage_(storage), name_(name), base_(std::move(base)) {}
    Result<void> Append(std::span<const std::byte> bytes) override { return base_->Append(bytes); }
    Result<void> Finish() override {
      return storage_.Call("Finish", name_, [&] { return base_->Finish(); });
    }

   private:
    RoundTripStorage& storage_;
    const std::string name_;
    const std::unique_ptr<ObjectWriter> base_;
  };

  /// An upload in parts, which are written at once, in any order.
  class Parts final : public Upload {
   public:
    Parts(RoundTripStorage& storage, std::string_view name) : storage_(storage), name_(name) {}

    void StartWrite(std::span<const std::byte> part, uint64_t offset_bytes, Done done) override {
      threads_.emplace_back([this, part, offset_bytes, done = std::move(done)]() mutable {
        done(storage_.Call("UploadPart", name_, [&]() -> Result<void> {
          const MutexLock lock(mutex_);
          bytes_.resize(std::max<size_t>(bytes_.size(), offset_bytes + part.size()));
          std::ranges::copy(part, bytes_.begin() + static_cast<ptrdiff_t>(offset_bytes));
          return {};
        }));
      });
    }
    Result<void> Finish(uint64_t size_bytes) override {
      return storage_.Call("FinishUpload", name_, [&]() -> Result<void> {
        const MutexLock lock(mutex_);
        CAIRN_CHECK(size_bytes == bytes_.size());
        return storage_.base_->PutIfAbsent(name_, bytes_);
      });
    }

   private:
    RoundTripStorage& storage_;
    const std::string name_;
    Mutex mutex_;
    std::vector<std::byte> bytes_ CAIRN_GUARDED_BY(mutex_);
    std::vector<std::jthread> threads_;  // of all writes; joined at the end
  };

  /// Performs each read on a separate thread.
  class Queue final : public internal::CallbackQueue {
   public:
    Queue(RoundTripStorage& storage, uint32_t depth) : CallbackQueue(depth), storage_(storage) {}
    ~Queue() override { WaitForAll(); }
    const char* name() const override { return "round trips"; }

   private:
    void BeginRead(const IoRequest& request, Done done) override {
      threads_.emplace_back([this, request, done = std::move(done)]() mutable {
        done(storage_.ReadRange(request.object, request.offset_bytes,
                                std::span(request.data, request.length_bytes)));
      });
    }
    bool is_usable() const override { return true; }

    RoundTripStorage& storage_;
    std::vector<std::jthread> threads_;  // of all reads; joined at the end
  };

  /// Performs one call. `perform` returns a Result.
  template <typename Perform>
  auto Call(std::string_view operation, std::string_view name, const Perform& perform)
      -> decltype(perform()) {
    uint64_t depth = 0;
    uint64_t restarts = 0;
    {
      const MutexLock lock(mutex_);
      depth = completed_depth_ + 1;
      restarts = restarts_;
      if (has_latency_) AwaitOthers();
    }
    auto result = perform();
    const MutexLock lock(mutex_);
    if (restarts == restarts_) {
      completed_depth_ = std::max(completed_depth_, depth);
      calls_.push_back(
          fmt::format("{} {} {}{}", depth, operation, name, result ? "" : " (failed)"));
    }
    const bool puts = operation.starts_with("Put") || operation.starts_with("Finish");
    if (!restart_suffix_.empty() && result && puts && name.ends_with(restart_suffix_)) {
      ++restarts_;
      completed_depth_ = 0;
      calls_.clear();
    }
    return result;
  }

  /// Returns when no other thread runs. Releases `mutex_` in the meantime.
  void AwaitOthers() CAIRN_REQUIRES(mutex_) {
    const uint64_t number = ++begun_;
    waiting_.insert(::gettid());
    std::optional<std::string> before;
    while (released_ < number) {
      const uint64_t begun = begun_;
      const std::set<pid_t> waiting = waiting_;
      mutex_.Unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const std::optional<std::string> state = StateWithout(waiting);
      mutex_.Lock();
      if (state && state == before && begun == begun_ && leaving_ == 0 && released_ < number) {
        released_ = begun_;
        leaving_ = waiting_.size();
        waiting_.clear();
      }
      before = state;
    }
    --leaving_;
  }

  /// Returns what changes when a thread other than these runs; nothing if one of them runs now.
  static std::optional<std::string> StateWithout(const std::set<pid_t>& threads) {
    std::string state;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
      const std::string name = entry.path().filename();
      if (threads.contains(std::stoi(name))) continue;
      std::ifstream file(entry.path() / "status");
      for (std::string line; std::getline(file, line);) {
        if (line.starts_with("State:") && line.find("S (") == line.npos) return std::nullopt;
        if (line.find("ctxt_switches") != line.npos) state += name + line;
      }
    }
    return state;
  }

  mutable Mutex mutex_;
  bool has_latency_ CAIRN_GUARDED_BY(mutex_) = false;
  std::set<pid_t> waiting_ CAIRN_GUARDED_BY(mutex_);  // the threads in AwaitOthers
  uint64_t begun_ CAIRN_GUARDED_BY(mutex_) = 0;       // number of calls that have waited
  uint64_t released_ CAIRN_GUARDED_BY(mutex_) = 0;    // and of those that need not wait longer
  uint64_t leaving_ CAIRN_GUARDED_BY(mutex_) = 0;     // that still are in AwaitOthers
  uint64_t restarts_ CAIRN_GUARDED_BY(mutex_) = 0;
  uint64_t completed_depth_ CAIRN_GUARDED_BY(mutex_) = 0;
  std::string restart_suffix_ CAIRN_GUARDED_BY(mutex_);
  std::vector<std::string> calls_ CAIRN_GUARDED_BY(mutex_);
};

}  // namespace cairn::kv::testing
