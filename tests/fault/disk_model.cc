// Durable and other changes of files and names.

#include "tests/fault/disk_model.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <span>

#include "kv/base/digest.h"
#include "tests/support/scoped_temp_dir.h"

namespace cairn::testing {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSectorBytes = 512;

std::string ParentOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

void Place(std::string& bytes, uint64_t offset_bytes, std::string_view part) {
  if (bytes.size() < offset_bytes + part.size()) bytes.resize(offset_bytes + part.size());
  bytes.replace(offset_bytes, part.size(), part);
}

}  // namespace

FileBytes::FileBytes(std::string bytes_in)
    : bytes(std::move(bytes_in)), digest(kv::Checksum64(std::as_bytes(std::span(bytes)))) {}

void WriteImage(const DiskImage& image, const std::string& directory) {
  fs::remove_all(directory);
  fs::create_directories(directory);
  for (const auto& [path, file] : image) {
    fs::create_directories(fs::path(directory + path).parent_path());
    std::ofstream(directory + path, std::ios::binary) << file->bytes;
  }
}

uint64_t DigestOf(const DiskImage& image) {
  std::string text;
  for (const auto& [path, file] : image) {
    text += path + " " + std::to_string(file->bytes.size()) + " " + std::to_string(file->digest);
  }
  return kv::Checksum64(std::as_bytes(std::span(text)));
}

DiskModel::DiskModel(std::string root) : root_(std::move(root)) {
  for (const auto& entry : fs::recursive_directory_iterator(root_)) {
    struct stat status{};
    ::lstat(entry.path().c_str(), &status);
    names_[Relative(entry.path())] = {status.st_ino, entry.is_directory()};
    if (entry.is_directory()) continue;
    File& file = files_[status.st_ino];
    file.bytes = ReadText(entry.path());
    file.durable = BytesOf(file);
  }
  durable_names_ = names_;
}

void DiskModel::Apply(const FileChange& change) {
  using Kind = FileChange::Kind;
  const std::string path = Relative(change.path);
  const Name name{change.inode, change.is_directory};
  switch (change.kind) {
    case Kind::kCreate:
      ChangeName({.removed = "", .added = path, .name = name});
      if (!change.is_directory) files_[change.inode];
      break;
    case Kind::kWrite: {
      File& file = files_[change.inode];
      Place(file.bytes, change.offset_bytes, change.bytes);
      file.unsynced.push_back({change.offset_bytes, change.bytes});
      file.cached = nullptr;
      break;
    }
    case Kind::kResize: {
      File& file = files_[change.inode];
      file.bytes.resize(change.size_bytes);
      file.cached = nullptr;
      break;
    }
    case Kind::kSync:
      if (change.is_directory) {
        SyncDirectory(path);
      } else {
        File& file = files_[change.inode];
        file.durable = BytesOf(file);
        file.unsynced.clear();
      }
      break;
    case Kind::kLink:
      ChangeName({.removed = "", .added = Relative(change.to), .name = name});
      break;
    case Kind::kRename:
      ChangeName({.removed = path, .added = Relative(change.to), .name = name});
      break;
    case Kind::kRemove:
      ChangeName({.removed = path, .added = "", .name = name});
      break;
  }
}

void DiskModel::ChangeName(NameChange change) {
  if (!change.removed.empty()) names_.erase(change.removed);
  if (!change.added.empty()) names_[change.added] = change.name;
  unsynced_names_.push_back(std::move(change));
}

void DiskModel::SyncDirectory(const std::string& path) {
  const auto is_in = [&](const std::string& name) {
    return !name.empty() && ParentOf(name) == path;
  };
  std::erase_if(durable_names_, [&](const auto& entry) { return is_in(entry.first); });
  for (const auto& [name, entry] : names_) {
    if (is_in(name)) durable_names_[name] = entry;
  }
  std::erase_if(unsynced_names_, [&](const NameChange& change) {
    return is_in(change.added.empty() ? change.removed : change.added);
  });
}

DiskModel::Bytes DiskModel::BytesOf(const File& file) const {
  if (file.cached == nullptr) file.cached = std::make_shared<FileBytes>(file.bytes);
  return file.cached;
}

template <typename BytesOfFile>
DiskImage DiskModel::ImageOf(const Names& names, const BytesOfFile& bytes_of) const {
  DiskImage image;
  for (const auto& [path, name] : names) {
    if (name.is_directory) continue;
    // A name exists only if the directories above it do.
    bool is_reachable = true;
    for (std::string parent = ParentOf(path); !parent.empty(); parent = ParentOf(parent)) {
      is_reachable = is_reachable && names.contains(parent);
    }
    if (is_reachable) image[path] = bytes_of(files_.at(name.inode));
  }
  return image;
}

DiskImage DiskModel::All() const {
  return ImageOf(names_, [&](const File& file) { return BytesOf(file); });
}

DiskImage DiskModel::Durable() const {
  static const auto nothing = std::make_shared<const FileBytes>("");
  return ImageOf(durable_names_, [&](const File& file) {
    return file.durable != nullptr ? file.durable : nothing;
  });
}

DiskImage DiskModel::NamesOnly() const {
  return ImageOf(names_, [&](const File& file) -> Bytes {
    if (file.unsynced.empty() && file.durable != nullptr &&
        file.durable->bytes.size() == file.bytes.size()) {
      return file.durable;
    }
    std::string bytes = file.durable != nullptr ? file.durable->bytes : "";
    bytes.resize(file.bytes.size());
    return std::make_shared<FileBytes>(std::move(bytes));
  });
}

DiskModel::Bytes DiskModel::MixedBytes(const File& file, SeededRandom& random) const {
  if (file.unsynced.empty() && file.durable != nullptr) return file.durable;
  std::string bytes = file.durable != nullptr ? file.durable->bytes : "";
  std::vector<const Write*> writes;
  for (const Write& write : file.unsynced) writes.push_back(&write);
  for (size_t i = writes.size(); i > 1; --i) {
    std::swap(writes[i - 1], writes[random.Between(0, i - 1)]);
  }
  for (const Write* write : writes) {
    if (random.Chance(0.3)) continue;
    if (random.Chance(0.5)) {
      Place(bytes, write->offset_bytes, write->bytes);
      continue;
    }
    for (uint64_t begin = 0; begin < write->bytes.size(); begin += kSectorBytes) {
      const auto sector = std::string_view(write->bytes).substr(begin, kSectorBytes);
      if (random.Chance(0.5)) Place(bytes, write->offset_bytes + begin, sector);
    }
  }
  if (random.Chance(0.3)) bytes.resize(file.bytes.size());
  return std::make_shared<FileBytes>(std::move(bytes));
}

DiskImage DiskModel::Mixture(SeededRandom& random) const {
  Names names = durable_names_;
  for (const NameChange& change : unsynced_names_) {
    if (random.Chance(0.5)) continue;
    if (!change.removed.empty()) names.erase(change.removed);
    if (!change.added.empty()) names[change.added] = change.name;
  }
  return ImageOf(names, [&](const File& file) { return MixedBytes(file, random); });
}

}  // namespace cairn::testing
