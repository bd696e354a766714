#include "kv/internal/io/run_on_threads.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

#include "kv/catch_exhaustion.h"

namespace cairn::kv::internal {

Result<void> RunOnThreads(size_t thread_count, const char* what,
                          const std::function<Result<void>(size_t)>& work) {
  std::vector<Result<void>> results(std::max<size_t>(thread_count, 1));
  const auto run = [&](size_t i) { results[i] = CatchExhaustion(what, [&] { return work(i); }); };
  {
    std::vector<std::jthread> threads;
    threads.reserve(results.size());
    try {
      for (size_t i = 1; i < results.size(); ++i) threads.emplace_back(run, i);
    } catch (const std::system_error&) {  // those that there are do the work
    }
    run(0);
  }
  for (Result<void>& result : results) CAIRN_TRY(std::move(result));
  return {};
}

}  // namespace cairn::kv::internal
