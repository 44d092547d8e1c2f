//! Pages: bounded, and continued behind the last row shown.

use super::ApiError;

/// Rows of one page at most.
pub const PAGE_SIZE_MAX: u32 = 1000;

pub(super) fn size(page_size: u32) -> Result<u32, ApiError> {
    if (1..=PAGE_SIZE_MAX).contains(&page_size) {
        return Ok(page_size);
    }
    Err(ApiError::bad_request("page_size", format!("{page_size} is not between 1 and {PAGE_SIZE_MAX}")))
}

pub(super) fn bad_token() -> ApiError {
    ApiError::bad_request("page_token", "not a token of this list").hint("start again without a token")
}
